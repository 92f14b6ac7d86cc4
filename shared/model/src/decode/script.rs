//! Reads scripts.

use super::Node;
use super::fields::{local, name, optional, required};
use super::reader::Reader;
use crate::handler::Interpreter;
use crate::name::{Namespace, ScriptName};
use crate::script::{MAX_REMARK_BYTES, MAX_SCRIPT_BYTES, ScriptSpec};

const KEYS: [&str; 5] = ["name", "namespace", "language", "text", "remark"];

/// Reads a script. It is in `namespace` if it has no field of that name.
pub(super) fn read(r: &mut Reader, node: &Node, namespace: &Namespace) -> Option<ScriptSpec> {
    let before = r.count();
    let f = r.fields(node, "", &KEYS, &[])?;
    let namespace = optional(r, &f, "namespace", |r, n, p| name(r, n, p, str::parse))
        .unwrap_or_else(|| namespace.clone());
    let name = required(r, &f, node, "name", "the script's name", |r, n, p| {
        local(r, n, p, |text| ScriptName::in_namespace(&namespace, text))
    });
    let what = "the program that runs it (bash, sh, python3, node, php or pwsh)";
    let language = required(r, &f, node, "language", what, |r, n, p| {
        r.word(n, p, "language", &Interpreter::ALL, &[])
    });
    let text = required(r, &f, node, "text", "the script's text", |r, n, p| {
        r.filled(n, p, MAX_SCRIPT_BYTES, "a script")
            .map(str::to_owned)
    });
    let remark = optional(r, &f, "remark", |r, n, p| {
        r.text(n, p, MAX_REMARK_BYTES).map(str::to_owned)
    });
    if r.count() > before {
        return None;
    }
    Some(ScriptSpec {
        name: name?,
        language: language?,
        text: text?,
        remark: remark.unwrap_or_default(),
    })
}
