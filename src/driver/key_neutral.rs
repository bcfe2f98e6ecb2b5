//! Libraries that drivers need and that cannot change what they compile. An update of such a library keeps the cache valid.
//!
//! All other libraries are in the key. That includes libm and libmvec: compilers fold constants with their functions (LLVM's
//! ConstantFolding.cpp), whose last bits differ between versions. It includes libstdc++ and libc++: their hash functions decide the
//! order of elements in the compilers' containers.

/// Names as in DT_SONAME, up to `.so`. A `*` at the end matches any rest.
const NEUTRAL: &[&str] = &[
    // The C library: memory, files, threads, and conversions of numbers, whose results are defined to the last bit. Compilers
    // have arithmetic of their own.
    "libc",
    "libc.musl-*",
    "ld-linux*",
    "ld-musl-*",
    "ld64",
    "libdl",
    "libpthread",
    "librt",
    "libutil",
    "libanl",
    "libresolv",
    // The compiler's support library: unwinding, and integer arithmetic that is exact.
    "libgcc_s",
    // Compression without loss.
    "libz",
    "libzstd",
    "liblzma",
    // LLVM's command line tools: terminals, line editing, and what these need.
    "libedit",
    "libtinfo",
    "libncurses",
    "libncursesw",
    "libbsd",
    "libmd",
    // LLVM's merging of manifests of Windows, and what that needs.
    "libxml2",
    "libicuuc",
    "libicudata",
    // LLVM's interpreter, which no compiler uses.
    "libffi",
    // Finding devices and talking to the kernel. The result is queried from the devices, and those answers are in the key.
    "libudev",
    "libdrm",
    "libdrm_*",
    "libpciaccess",
    "libsensors",
    "libexpat",
    // Allocation of memory, which Intel's CPU runtime opens by name. See `interchangeable` for allocators of the program.
    "libtbbmalloc",
];

/// Whether a library of this name cannot change code.
pub fn is_neutral(name: &[u8]) -> bool {
    let end = name.windows(3).position(|window| window == b".so");
    let name = &name[..end.unwrap_or(name.len())];
    NEUTRAL
        .iter()
        .any(|known| match known.as_bytes().strip_suffix(b"*") {
            Some(prefix) => name.starts_with(prefix),
            None => known.as_bytes() == name,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_neutral_and_its_mathematics_and_compilers_are_not() {
        for name in [
            "libc.so.6",
            "libc.musl-x86_64.so.1",
            "ld-linux-x86-64.so.2",
            "libpthread.so.0",
            "libz.so.1",
            "libicuuc.so.72",
            "libdrm_nouveau.so.2",
        ] {
            assert!(is_neutral(name.as_bytes()), "{name}");
        }
        for name in [
            "libm.so.6",
            "libmvec.so.1",
            "libstdc++.so.6",
            "libLLVM-15.so.1",
            "libclang-cpp.so.15",
            "libcommon_clang.so.2026.22.10.0",
            "libLLVMSPIRVLib.so.15",
            "libz3.so.4",
            "libclc.so",
            "libintlc.so.5",
            "libhwloc.so.15",
        ] {
            assert!(!is_neutral(name.as_bytes()), "{name}");
        }
    }
}
