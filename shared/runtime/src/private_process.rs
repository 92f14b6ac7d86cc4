//! Hides a process from other processes of the same user.

use std::io;

/// Hides the environment, the memory and the descriptors of this process from the processes that its user runs, such as
/// jobs. The process can then not be debugged without root, and it leaves no core dump.
///
/// A program that this process starts is not hidden: the system resets the setting when it executes a program. The
/// environments of jobs therefore stay readable for the search for orphans.
///
/// Linux only: elsewhere it does nothing.
///
/// # Errors
///
/// The system's error if it refuses.
pub fn hide() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_dumpable(false)?;
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    #[test]
    fn this_process_is_hidden_and_the_programs_that_it_starts_are_not() {
        super::hide().expect("the system allows it");
        assert_eq!(nix::sys::prctl::get_dumpable(), Ok(false));
        let mut child = Command::new("sleep")
            .arg("600")
            .env("MARK_OF_THE_TEST", "x")
            .spawn()
            .expect("started");
        // `spawn` returns after the program was executed.
        let environment = std::fs::read(format!("/proc/{}/environ", child.id()));
        child.kill().expect("killed");
        child.wait().expect("ended");
        let environment = String::from_utf8_lossy(&environment.expect("readable")).into_owned();
        assert!(environment.contains("MARK_OF_THE_TEST=x"), "{environment}");
    }
}
