//! Entity tags (RFC 9110, section 8.8.3) of jobs and users: `"17-3"` is version 3 of the job or user with the id 17.
//!
//! A tag stands for the stored definition, not for what a response shows besides, such as the last run of a job.

use cueline_store::Revision;

/// The most tags in one header.
const MAX_TAGS: usize = 100;

/// The tag of a stored job or user.
pub(crate) fn etag(revision: Revision) -> String {
    format!("\"{}-{}\"", revision.id, revision.version)
}

/// The tags that a request names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tags {
    /// `*`: any.
    Any,
    /// These, at most 100.
    These(Vec<Tag>),
}

/// One tag of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    /// `W/"…"`. This server sends none.
    pub(crate) is_weak: bool,
    /// What it stands for. A tag that this server cannot have sent stands for nothing.
    pub(crate) revision: Option<Revision>,
}

/// Reads the value of a header: `*`, or tags between commas. The error completes "If-Match: …".
pub(crate) fn parse(value: &[u8]) -> Result<Tags, String> {
    if value.trim_ascii() == b"*" {
        return Ok(Tags::Any);
    }
    let mut tags = Vec::new();
    let mut rest = value.trim_ascii_start();
    while !rest.is_empty() {
        // A list may have empty elements.
        if let Some(after) = rest.strip_prefix(b",") {
            rest = after.trim_ascii_start();
            continue;
        }
        if tags.len() == MAX_TAGS {
            return Err(format!("more than {MAX_TAGS} tags; give fewer"));
        }
        let (tag, after) = first(rest).ok_or_else(|| {
            "not a list of entity tags; give the ETag of an earlier response with its quotation marks, such as \"17-3\", or *"
                .to_owned()
        })?;
        tags.push(tag);
        rest = after.trim_ascii_start();
        if !rest.is_empty() && !rest.starts_with(b",") {
            return Err("tags without a comma between them; put one there".to_owned());
        }
    }
    if tags.is_empty() {
        return Err("is empty; give the ETag of an earlier response, or *".to_owned());
    }
    Ok(Tags::These(tags))
}

/// The first tag of a list, and what follows it.
fn first(text: &[u8]) -> Option<(Tag, &[u8])> {
    let (is_weak, quoted) = match text.strip_prefix(b"W/") {
        Some(quoted) => (true, quoted),
        None => (false, text),
    };
    let inner = quoted.strip_prefix(b"\"")?;
    let end = inner.iter().position(|byte| *byte == b'"')?;
    let (opaque, after) = (&inner[..end], &inner[end + 1..]);
    // Spaces, control characters and DEL are not allowed. Bytes from 0x80 on are.
    if opaque.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
        return None;
    }
    let revision = revision(opaque);
    Some((Tag { is_weak, revision }, after))
}

/// What a tag of this server stands for.
fn revision(opaque: &[u8]) -> Option<Revision> {
    let (id, version) = std::str::from_utf8(opaque).ok()?.split_once('-')?;
    let revision = Revision {
        id: id.parse().ok()?,
        version: version.parse().ok()?,
    };
    // Tags are compared as texts: `"017-3"` is another tag than `"17-3"`.
    let is_same = etag(revision).as_bytes()[1..].starts_with(opaque);
    is_same.then_some(revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(id: i64, version: i64) -> Tag {
        Tag {
            is_weak: false,
            revision: Some(Revision { id, version }),
        }
    }

    fn unknown(is_weak: bool) -> Tag {
        Tag {
            is_weak,
            revision: None,
        }
    }

    #[test]
    fn a_tag_is_read_as_it_is_written() {
        let revision = Revision { id: 17, version: 3 };
        assert_eq!(etag(revision), "\"17-3\"");
        let read = parse(etag(revision).as_bytes()).expect("is a tag");
        assert_eq!(read, Tags::These(vec![tag(17, 3)]));
    }

    #[test]
    fn a_header_has_a_star_or_tags() {
        let weak = Tag {
            is_weak: true,
            ..tag(17, 3)
        };
        for (text, expected) in [
            ("*", Tags::Any),
            (" * ", Tags::Any),
            (
                "\"17-3\" , \"17-4\"",
                Tags::These(vec![tag(17, 3), tag(17, 4)]),
            ),
            (",\"17-3\",,\t", Tags::These(vec![tag(17, 3)])),
            ("W/\"17-3\"", Tags::These(vec![weak])),
            ("\"\"", Tags::These(vec![unknown(false)])),
            (
                "\"a,b\", W/\"\u{e9}\"",
                Tags::These(vec![unknown(false), unknown(true)]),
            ),
            ("\"017-3\"", Tags::These(vec![unknown(false)])),
            ("\"17-3-1\"", Tags::These(vec![unknown(false)])),
            ("\"17-+3\"", Tags::These(vec![unknown(false)])),
            (
                "\"99999999999999999999-1\"",
                Tags::These(vec![unknown(false)]),
            ),
        ] {
            assert_eq!(parse(text.as_bytes()).expect(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_list_of_tags_is_refused() {
        for text in [
            "",
            " ",
            ",",
            "17-3",
            "\"17-3",
            "17-3\"",
            "*, \"17-3\"",
            "\"17-3\", *",
            "\"17-3\" \"17-4\"",
            "w/\"17-3\"",
            "W/ \"17-3\"",
            "\"17 3\"",
            "\"17\u{7f}\"",
            "'17-3'",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
        let many = |count: usize| vec!["\"1-1\""; count].join(",");
        assert!(parse(many(MAX_TAGS).as_bytes()).is_ok());
        let error = parse(many(MAX_TAGS + 1).as_bytes()).expect_err("too many");
        assert!(error.contains("100"), "{error}");
    }
}
