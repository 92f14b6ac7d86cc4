//! Replaces the file names of scripts by the texts of the files.

use std::path::Path;

use cueline_model::decode::{MAX_PROBLEMS, Node, Value};
use cueline_model::script::MAX_SCRIPT_BYTES;

use super::read_text;

/// Gives each entry of `script` and `scripts` with a `file` the text of that file. A relative name is one beside the job
/// file. The decoder reports everything else that is wrong.
pub(super) fn include(root: &mut Node, job_file: &Path) -> Result<(), Vec<String>> {
    let mut messages = Vec::new();
    let Value::Map(entries) = &mut root.value else {
        return Ok(());
    };
    let beside = job_file.parent().unwrap_or(Path::new(""));
    for (key, list) in entries {
        if !matches!(key.as_str(), "script" | "scripts") {
            continue;
        }
        let Value::List(items) = &mut list.value else {
            continue;
        };
        for (index, item) in items.iter_mut().enumerate().take(MAX_PROBLEMS) {
            let line = item.line;
            if let Err((at, message)) = include_one(item, beside) {
                let line = at
                    .or(line)
                    .map_or_else(String::new, |line| format!(":{line}"));
                messages.push(format!(
                    "{}{line}: {key}[{index}].file: {message}",
                    job_file.display()
                ));
            }
        }
    }
    if messages.is_empty() {
        Ok(())
    } else {
        Err(messages)
    }
}

fn include_one(item: &mut Node, beside: &Path) -> Result<(), (Option<u32>, String)> {
    let Value::Map(fields) = &mut item.value else {
        return Ok(());
    };
    let Some(position) = fields.iter().position(|(key, _)| key == "file") else {
        return Ok(());
    };
    let has_text = fields.iter().any(|(key, _)| key == "text");
    let (_, node) = &fields[position];
    let line = node.line;
    if has_text {
        let message = "given beside text; one of the two is expected";
        return Err((line, message.to_owned()));
    }
    let Value::Text(name) = &node.value else {
        return Err((line, "the name of a file is expected".to_owned()));
    };
    let text = read_script(&beside.join(name)).map_err(|message| (line, message))?;
    let value = Value::Text(text);
    fields[position] = ("text".to_owned(), Node { line, value });
    Ok(())
}

/// Reads a file with the text of a script.
pub fn read_script(file: &Path) -> Result<String, String> {
    let text = read_text(file)?;
    if text.len() > MAX_SCRIPT_BYTES {
        let (name, bytes) = (file.display(), text.len());
        return Err(format!(
            "{name}: {bytes} bytes given; a script has at most {MAX_SCRIPT_BYTES}"
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use cueline_model::Namespace;

    use crate::jobfile::read;

    #[test]
    fn a_script_has_the_text_of_its_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("is made");
            std::fs::write(&path, text).expect("is written");
            path
        };
        write("scripts/backup.py", "print(1)\n");
        let script = "[[script]]\nname = \"backup\"\nlanguage = \"python3\"\n";
        let file = "file = \"scripts/backup.py\"\n";
        let jobs = write("jobs.toml", &format!("{script}{file}"));
        let found = read(&jobs, &Namespace::default()).expect("is read");
        assert_eq!(found.scripts[0].text, "print(1)\n");
        for (text, place, says) in [
            (
                "file = \"none.py\"\n",
                ":4: script[0].file: ",
                "failed to read",
            ),
            ("file = \".\"\n", ":4: script[0].file: ", "is not a file"),
            ("file = 3\n", ":4: script[0].file: ", "the name of a file"),
            (
                "text = \"x\"\nfile = \"none.py\"\n",
                ":5: script[0].file: ",
                "given beside text",
            ),
        ] {
            let jobs = write("wrong.toml", &format!("{script}{text}"));
            let error = read(&jobs, &Namespace::default()).expect_err("is refused");
            let message = &error.messages[0];
            assert!(
                message.contains(place) && message.contains(says),
                "{message}"
            );
        }
    }
}
