//! Tells `lib.rs` where libsodium is: Cargo tells it to build scripts alone.

use std::env;

fn main() {
    for (name, from) in [("SODIUM_INCLUDE", "DEP_SODIUM_INCLUDE"), ("SODIUM_LIB", "DEP_SODIUM_LIB")] {
        let path = env::var(from).expect("libsodium-sys-stable compiles libsodium, and says where");
        println!("cargo::rustc-env={name}={path}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
