//! Tells the linker how to write what the loader changes in the program.

use std::process::Command;

/// The first GNU C library that loads a program with packed relocations.
const SINCE: (u32, u32) = (2, 36);

/// The program has 53,000 addresses that the loader corrects at each start. A list of them takes 1.2 MB, which the loader reads,
/// and which stays in memory. Packed, the list takes 17 KB.
///
/// A program with a packed list starts only where the C library is not older than [`SINCE`]. So it is packed only if that
/// holds for this machine.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = std::env::var("TARGET").unwrap_or_default();
    let is_for_this_machine = std::env::var("HOST").is_ok_and(|host| host == target);
    let is_new_enough = c_library().is_some_and(|version| version >= SINCE);
    if is_for_this_machine && target.ends_with("-linux-gnu") && is_new_enough {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of this machine's GNU C library. `None` if it has another one.
fn c_library() -> Option<(u32, u32)> {
    let output = Command::new("getconf")
        .arg("GNU_LIBC_VERSION")
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    let minor = minor.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
