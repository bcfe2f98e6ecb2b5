//! Link flags of `liboclcache.so`.

fn main() {
    println!("cargo::rerun-if-changed=src/build.rs");
    // The loader's libOpenCL.so stands before us in the global scope. Without -Bsymbolic the address of our own
    // clGetExtensionFunctionAddress would be libOpenCL's, which calls us back, for ever.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Drivers keep pointers to our hooks for the life of the process; Khronos' loader closes libraries that report no platform.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A sanitizer's functions are in the program that opens us.
    if std::env::var_os("CARGO_CFG_SANITIZE").is_none() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--no-undefined");
    }
    for variable in [
        "OCLCACHE_DEFAULT_DIR",
        "OCLCACHE_DEFAULT_CONFIG_DIR",
        "OCLCACHE_DEFAULT_SYSTEM_CONFIG_DIR",
        "OCLCACHE_DEFAULT_LIBRARY",
        "OCLCACHE_DEFAULT_COMMAND",
    ] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
}
