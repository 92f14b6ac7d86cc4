//! Asks the linker for packed relative relocations (`DT_RELR`).

use std::process::Command;

/// Where linkers are known to pack them.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The first GNU C library that loads a program with packed relocations.
const SINCE: (u32, u32) = (2, 36);

/// The loader corrects 53,000 addresses of the program at each start. It reads a list of them, which takes 1.3 MB and stays in
/// memory. Packed, the list takes 14 KB.
///
/// A program with a packed list does not start where the C library is older than [`SINCE`]. One that is built with an older
/// library has no packed list, and starts with newer ones as well.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is_for_this_machine = ["TARGET", "HOST"]
        .iter()
        .all(|name| std::env::var(name).is_ok_and(|target| target == TARGET));
    let is_new_enough = c_library_version().is_some_and(|version| version >= SINCE);
    let relocations = if is_for_this_machine && is_new_enough {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
        "packed"
    } else {
        "plain"
    };
    // For the test of the program.
    println!("cargo:rustc-env=CUELINE_RELOCATIONS={relocations}");
}

/// `None` if this machine has another C library than GNU's.
fn c_library_version() -> Option<(u32, u32)> {
    let output = Command::new("getconf")
        .arg("GNU_LIBC_VERSION")
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    let minor = minor.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
