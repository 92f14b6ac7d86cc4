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

    use cueline_test_support::{SOON, eventually_blocking};

    #[test]
    fn this_process_is_hidden_and_the_programs_that_it_starts_are_not() {
        super::hide().expect("the system allows it");
        assert_eq!(nix::sys::prctl::get_dumpable(), Ok(false));
        let mut child = Command::new("sleep")
            .arg("600")
            .env("MARK_OF_THE_TEST", "x")
            .spawn()
            .expect("started");
        // `spawn` may return while the program is being executed. The file is empty until it has its environment.
        let path = format!("/proc/{}/environ", child.id());
        let environment = eventually_blocking("an environment", SOON, || {
            let environment = std::fs::read(&path).expect("readable");
            let text = String::from_utf8_lossy(&environment).into_owned();
            if text.is_empty() { Err(text) } else { Ok(text) }
        });
        child.kill().expect("killed");
        child.wait().expect("ended");
        let environment = environment.expect("not empty");
        assert!(environment.contains("MARK_OF_THE_TEST=x"), "{environment}");
    }
}
