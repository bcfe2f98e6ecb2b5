# What ci/demo, ci/test, ci/bench, ci/compat and ci/package share: where things are, and functions that install what is missing and say so.
# Source it; it moves to the top of the repository. Everything it makes itself lies under target/.
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
top=$PWD
mkdir -p target
export CLIPPY_CONF_DIR="$top/ci"

# shellcheck disable=SC2034
intel_license='Intel End User License Agreement for Developer Tools'
skipped=()
not_run=()
apt_updated=

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "error: $*"
    exit 1
}

# skip NAME WHY: remembers what could not be had.
skip() { skipped+=("$1 ($2)"); }

# outage NAME WHY: the same for what a registry did not give. Whoever ends well without it has not run everything.
outage() {
    skip "$1" "$2"
    not_run+=("$1 ($2)")
}

print_skipped() {
    local each
    if ((${#skipped[@]} == 0)); then
        say 'skipped: nothing'
    fi
    for each in "${skipped[@]}"; do
        say "skipped: $each"
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >target/apt.log 2>&1
}

# Fetches the lists of packages, once.
update_apt() {
    if [ -n "$apt_updated" ]; then return; fi
    as_root apt-get update -qq >target/apt.log 2>&1 || say 'apt-get update failed; trying with the lists that are there'
    apt_updated=yes
}

# need_packages NAME...: the packages of the distribution. What cannot be had is skipped by name; the status says whether all is there.
need_packages() {
    local name missing=() why=
    for name in "$@"; do
        is_installed "$name" || missing+=("$name")
    done
    if ((${#missing[@]} == 0)); then
        return 0
    fi
    if ! command -v apt-get >/dev/null; then
        why='not installed, and there is no apt-get here'
    elif [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        why='not installed, and this is neither root nor is there sudo'
    fi
    if [ -z "$why" ]; then
        say "installing packages: ${missing[*]}"
        update_apt
        if apt_install "${missing[@]}"; then
            return 0
        fi
        why='apt-get could not install it'
    fi
    local status=0
    for name in "${missing[@]}"; do
        if [ "$why" = 'apt-get could not install it' ]; then
            if apt_install "$name"; then continue; fi
            tail -n 3 target/apt.log >&2
            outage "$name" "$why"
        else
            skip "$name" "$why"
        fi
        status=1
    done
    return $status
}

# need_command COMMAND PACKAGE...: the packages only where no such command is there yet, wherever it comes from.
need_command() {
    local command=$1
    shift
    command -v "$command" >/dev/null || need_packages "$@"
}

# need_rust: cargo, and what is needed to build (a C compiler and linker).
need_rust() {
    command -v cargo >/dev/null || fail 'no cargo found: install a Rust toolchain first (https://rustup.rs)'
    need_command cc gcc libc6-dev || fail 'no C compiler'
    need_command python3 python3 || fail 'no Python 3'
}

# need_cargo_fuzz: `cargo fuzz`, and the C++ compiler that its library is built with.
need_cargo_fuzz() {
    need_command c++ g++ || return 1
    export PATH="$top/target/fuzz/bin:$PATH"
    cargo fuzz --version >/dev/null 2>&1 && return
    say 'installing cargo-fuzz in target/fuzz'
    cargo install --quiet --locked --debug --root target/fuzz cargo-fuzz && return
    outage cargo-fuzz 'cargo could not install it'
    return 1
}

# need_cargo_deb: `cargo deb`, and what finds the packages that a program needs.
need_cargo_deb() {
    local version=3.8.0
    need_command dpkg-shlibdeps dpkg-dev || return 1
    export PATH="$top/target/package/bin:$PATH"
    [ "$(cargo deb --version 2>/dev/null)" = "cargo-deb $version" ] && return
    say "installing cargo-deb $version in target/package"
    cargo install --quiet --locked --debug --root target/package cargo-deb@$version && return
    outage cargo-deb 'cargo could not install it'
    return 1
}

# need_cargo_generate_rpm: `cargo generate-rpm`.
need_cargo_generate_rpm() {
    local version=0.21.1
    export PATH="$top/target/package/bin:$PATH"
    [ "$(cargo generate-rpm --version 2>/dev/null)" = "cargo-generate-rpm $version" ] && return
    say "installing cargo-generate-rpm $version in target/package"
    cargo install --quiet --locked --debug --root target/package cargo-generate-rpm@$version && return
    outage cargo-generate-rpm 'cargo could not install it'
    return 1
}

# need_cargo_deny: `cargo deny`.
need_cargo_deny() {
    local version=0.20.2
    export PATH="$top/target/deny/bin:$PATH"
    [ "$(cargo deny --version 2>/dev/null)" = "cargo-deny $version" ] && return
    say "installing cargo-deny $version in target/deny"
    # Not among what a script of ours builds: it is never built again.
    env -u CARGO_TARGET_DIR cargo install --quiet --locked --debug --root target/deny cargo-deny@$version && return
    outage cargo-deny 'cargo could not install it'
    return 1
}

# need_s3s_fs: s3s-fs, an S3 over a directory (four minutes to build, once); sets OCLCACHE_TEST_S3S to it.
need_s3s_fs() {
    local version=0.14.1
    export OCLCACHE_TEST_S3S=$top/target/s3s/bin/s3s-fs
    [ "$("$OCLCACHE_TEST_S3S" --version 2>/dev/null)" = "s3s-fs $version" ] && return
    say "installing s3s-fs $version in target/s3s"
    env -u CARGO_TARGET_DIR cargo install --quiet --locked --debug --root target/s3s --features binary s3s-fs@$version && return
    unset OCLCACHE_TEST_S3S
    outage s3s-fs 'cargo could not install it'
    return 1
}

# need_mdbook: `mdbook`, one that is installed or one from crates.io.
need_mdbook() {
    local version=0.5.4
    export PATH="$top/target/mdbook/bin:$PATH"
    command -v mdbook >/dev/null && return
    say "installing mdbook $version in target/mdbook"
    cargo install --quiet --locked --debug --no-default-features --features search --root target/mdbook mdbook@$version && return
    outage mdbook 'cargo could not install it'
    return 1
}

# need_component NAME: a part of the Rust toolchain, such as clippy.
need_component() {
    local subcommand=${1/rustfmt/fmt}
    cargo "$subcommand" --version >/dev/null 2>&1 && return
    if command -v rustup >/dev/null; then
        say "installing the toolchain's $1"
        rustup component add "$1" >&2 && return
    fi
    skip "cargo $subcommand" "the toolchain has no $1"
    return 1
}

# A Python that can make virtual environments; Debian's own needs a package for that.
python_with_venv() {
    local python
    for python in python3 /usr/bin/python3; do
        if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
            command -v "$python"
            return
        fi
    done
    return 1
}

# need_venv FOLDER PACKAGE...: a virtual environment with these packages of PyPI. Each package is installed once.
need_venv() {
    local folder=$1 python name missing=()
    shift
    for name in "$@"; do
        [ -e "$folder/.installed/$name" ] || missing+=("$name")
    done
    if ((${#missing[@]} == 0)); then
        return 0
    fi
    if ! python=$(python_with_venv); then
        need_packages python3-venv || true
        python=$(python_with_venv) || return 1
    fi
    say "installing Python packages in $folder: ${missing[*]}"
    if [ ! -x "$folder/bin/pip" ] && ! "$python" -m venv --clear "$folder"; then
        return 1
    fi
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "${missing[@]}" >&2 || return 1
    mkdir -p "$folder/.installed"
    for name in "${missing[@]}"; do
        : >"$folder/.installed/$name"
    done
}

# need_pocl: PoCL and a loader; sets OCLCACHE_TEST_POCL to its .icd file.
need_pocl() {
    unset OCLCACHE_TEST_POCL
    if ! need_packages ocl-icd-libopencl1 pocl-opencl-icd; then
        return 1
    fi
    export OCLCACHE_TEST_POCL=/etc/OpenCL/vendors/pocl.icd
    if [ ! -e "$OCLCACHE_TEST_POCL" ]; then
        skip PoCL "no $OCLCACHE_TEST_POCL"
        unset OCLCACHE_TEST_POCL
        return 1
    fi
}

# need_rusticl: Mesa's rusticl; sets OCLCACHE_TEST_RUSTICL to its .icd file.
need_rusticl() {
    unset OCLCACHE_TEST_RUSTICL
    need_packages mesa-opencl-icd || return 1
    export OCLCACHE_TEST_RUSTICL=/etc/OpenCL/vendors/rusticl.icd
    if [ ! -e "$OCLCACHE_TEST_RUSTICL" ]; then
        skip rusticl 'this mesa-opencl-icd has none'
        unset OCLCACHE_TEST_RUSTICL
        return 1
    fi
}

# need_intel: Intel's CPU runtime, fetched from PyPI for this checkout only; sets OCLCACHE_TEST_INTEL to its .icd file.
need_intel() {
    local folder=$top/target/intel found
    unset OCLCACHE_TEST_INTEL
    if [ "$(uname -m)" != x86_64 ]; then
        skip 'Intel CPU runtime' "there is none for $(uname -m)"
        return 1
    fi
    if ! need_venv "$folder" intel-opencl-rt intel-cmplr-lib-rt; then
        outage 'Intel CPU runtime' 'it could not be installed from PyPI'
        return 1
    fi
    found=$(find "$folder/" -name libintelocl.so -print -quit)
    if [ -z "$found" ]; then
        skip 'Intel CPU runtime' "no libintelocl.so in $folder"
        return 1
    fi
    mkdir -p "$folder/vendors"
    printf '%s\n' "$found" >"$folder/vendors/intel.icd"
    export OCLCACHE_TEST_INTEL=$folder/vendors/intel.icd
}

# need_intel_gpu: Intel's GPU driver without a GPU, from packages of the distribution that are unpacked for this checkout only and not
# installed; sets OCLCACHE_TEST_INTEL_GPU to its .icd file. The file beside it that ends in .env has the variables that it needs to
# be used. It compiles for a product that is not there, and executes nothing.
need_intel_gpu() {
    local folder=$top/target/intel-gpu root=$top/target/intel-gpu/root library name names
    unset OCLCACHE_TEST_INTEL_GPU
    if [ "$(uname -m)" != x86_64 ] || ! command -v apt-get >/dev/null; then
        skip 'Intel GPU driver' 'no apt-get here, or another processor than x86-64'
        return 1
    fi
    if [ ! -e "$folder/unpacked" ]; then
        rm -rf "$folder"
        mkdir -p "$folder/packages" "$root" "$folder/vendors"
        update_apt
        # With what it needs and this machine lacks.
        mapfile -t names < <(apt-get -s install --no-install-recommends intel-opencl-icd 2>/dev/null | awk '$1 == "Inst" { print $2 }')
        if ((${#names[@]} == 0)); then names=(intel-opencl-icd libigc1 libigdfcl1 libigdgmm12); fi
        say "unpacking packages in target/intel-gpu: ${names[*]}"
        if ! (cd "$folder/packages" && apt-get download -qq "${names[@]}") >target/apt.log 2>&1; then
            tail -n 3 target/apt.log >&2
            outage 'Intel GPU driver' 'apt-get could not download it'
            return 1
        fi
        for name in "$folder"/packages/*.deb; do dpkg -x "$name" "$root" || return 1; done
        basename -a "$folder"/packages/*.deb >"$folder/unpacked"
        rm -rf "$folder/packages"
    fi
    if ! grep -q '^intel-opencl-icd_22\.43\.' "$folder/unpacked"; then
        skip 'Intel GPU driver' 'the tests know what version 22.43 does, and this distribution has another'
        return 1
    fi
    library=$(find "$root" -name libigdrcl.so -print -quit)
    printf '%s\n' "$library" >"$folder/vendors/intel-gpu.icd"
    # What a GPU would get is written, by default into a file in the working directory.
    printf '%s\n' "LD_LIBRARY_PATH=$(dirname "$(dirname "$library")")" NEOReadDebugKeys=1 SetCommandStreamReceiver=1 \
        ProductFamilyOverride=tgllp AUBDumpCaptureFileName=/dev/null >"$folder/vendors/intel-gpu.env"
    export OCLCACHE_TEST_INTEL_GPU=$folder/vendors/intel-gpu.icd
}

# need_oclgrind: Oclgrind; sets OCLCACHE_TEST_OCLGRIND to an .icd file of it, which its package does not have.
need_oclgrind() {
    local folder=$top/target/oclgrind library
    unset OCLCACHE_TEST_OCLGRIND
    need_packages oclgrind || return 1
    library=$(dpkg -L oclgrind 2>/dev/null | grep -m 1 'liboclgrind-rt-icd\.so$' || true)
    if [ -z "$library" ]; then
        skip Oclgrind 'its package has no driver for the loader'
        return 1
    fi
    mkdir -p "$folder"
    printf '%s\n' "$library" >"$folder/oclgrind.icd"
    export OCLCACHE_TEST_OCLGRIND=$folder/oclgrind.icd
}

# need_python PACKAGE...: sets OCLCACHE_TEST_PYTHON to a Python that has them.
need_python() {
    unset OCLCACHE_TEST_PYTHON
    if ! need_venv "$top/target/python" "$@"; then
        outage "Python with $*" 'it could not be installed from PyPI'
        return 1
    fi
    export OCLCACHE_TEST_PYTHON=$top/target/python/bin/python
}

# need_water_box: the OpenMM program of the demo, compiled.
need_water_box() {
    need_packages libopenmm-dev libopenmm-plugins || return 1
    need_command g++ g++ || return 1
    local program=target/programs/water_box source=tests/programs/water_box.cpp
    if [ ! -e "$program" ] || [ "$source" -nt "$program" ]; then
        say "compiling $source"
        mkdir -p target/programs
        g++ -O2 "$source" -o "$program" -lOpenMM
    fi
}

# need_compat_python PACKAGE...: these in a virtual environment of ci/compat's own, so that what other scripts install stays small.
need_compat_python() {
    if ! need_venv target/compat/python "$@"; then
        outage "Python with $*" 'it could not be installed from PyPI'
        return 1
    fi
}

# need_pyopencl_tests: PyOpenCL's own tests, which only its source package has, of the version that is installed. Only they
# are unpacked: beside the package's sources Python would import those in place of the installed ones.
need_pyopencl_tests() {
    need_compat_python pyopencl numpy pytest mako || return 1
    local python=target/compat/python/bin/python folder=target/compat/pyopencl-tests version
    version=$("$python" -c 'import importlib.metadata; print(importlib.metadata.version("pyopencl"))') || return 1
    if [ "$(cat "$folder/version" 2>/dev/null)" = "$version" ]; then return; fi
    say "fetching the tests of PyOpenCL $version"
    rm -rf "$folder"
    mkdir -p "$folder"
    if ! "$python" -m pip download --quiet --disable-pip-version-check --no-input --no-deps --no-binary pyopencl \
        --dest "$folder" "pyopencl==$version" >&2 ||
        ! tar -xzf "$folder/pyopencl-$version.tar.gz" -C "$folder" --strip-components=2 "pyopencl-$version/test"; then
        skip "the tests of PyOpenCL $version" 'PyPI has no source package of it, or it could not be unpacked'
        return 1
    fi
    printf '%s\n' "$version" >"$folder/version"
}

# need_client NAME: what one program of ci/clients.py needs.
need_client() {
    case $1 in
    clinfo | clpeak | hashcat | darktable) need_packages "$1" ;;
    ffmpeg | unsharp) need_packages ffmpeg ;;
    clblast) need_packages clblast-utils ;;
    openmm) need_water_box ;;
    opencv) need_python numpy opencv-python-headless ;;
    pyopencl) need_python pyopencl numpy ;;
    pyopencl-*) need_pyopencl_tests ;;
    pyfai*) need_compat_python pyopencl numpy pyFAI ;;
    *) fail "no program $1" ;;
    esac
}
