//! The settings of a unit file, as `systemd.syntax(7)` describes them.

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) section: String,
    pub(super) key: String,
    pub(super) value: String,
    /// The number of the line, from 1.
    pub(super) line: u32,
}

/// A unit file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Unit {
    pub(super) settings: Vec<Setting>,
}

impl Unit {
    /// Parses a unit file. Refuses a line that systemd would ignore with a warning.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut unit = Self::default();
        let mut section = String::new();
        let mut lines = (1..).zip(text.lines());
        while let Some((number, first)) = lines.next() {
            let first = first.trim();
            if first.is_empty() || first.starts_with(['#', ';']) {
                continue;
            }
            let mut whole = first.to_owned();
            // A backslash at the end continues the line. Comments between the parts are skipped.
            while let Some(part) = whole.strip_suffix('\\') {
                let next = lines
                    .by_ref()
                    .map(|(_, line)| line.trim())
                    .find(|line| !line.starts_with(['#', ';']));
                whole = format!("{part} {}", next.unwrap_or_default());
            }
            if let Some(name) = whole.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
                name.clone_into(&mut section);
            } else if let Some((key, value)) = whole.split_once('=') {
                unit.settings.push(Setting {
                    section: section.clone(),
                    key: key.trim().to_owned(),
                    value: value.trim().to_owned(),
                    line: number,
                });
            } else {
                return Err(format!(
                    "line {number}: {whole:?} is no setting; [Section] or Key=value is expected"
                ));
            }
        }
        Ok(unit)
    }

    /// The values of a setting that may be given several times. An empty value removes the ones before it.
    pub(super) fn all<'u>(&'u self, section: &'u str, key: &str) -> Vec<&'u Setting> {
        let mut found = Vec::new();
        for setting in self.in_section(section).filter(|s| s.key == key) {
            if setting.value.is_empty() {
                found.clear();
            } else {
                found.push(setting);
            }
        }
        found
    }

    /// The last value of a setting; `None` if that is empty.
    pub(super) fn last<'u>(&'u self, section: &'u str, key: &str) -> Option<&'u str> {
        let last = self.in_section(section).filter(|s| s.key == key).last()?;
        Some(last.value.as_str()).filter(|value| !value.is_empty())
    }

    /// A setting that is yes or no.
    pub(super) fn flag(&self, section: &str, key: &str) -> Result<bool, String> {
        match self
            .last(section, key)
            .map(str::to_ascii_lowercase)
            .as_deref()
        {
            None | Some("0" | "no" | "n" | "false" | "f" | "off") => Ok(false),
            Some("1" | "yes" | "y" | "true" | "t" | "on") => Ok(true),
            Some(other) => Err(format!("{key}={other}: yes or no is expected")),
        }
    }

    pub(super) fn in_section<'u>(
        &'u self,
        section: &'u str,
    ) -> impl Iterator<Item = &'u Setting> + 'u {
        self.settings.iter().filter(move |s| s.section == section)
    }
}

/// A time span of `systemd.time(7)` in milliseconds: `5min 20s`, `1h`, `90`. `None` stands for `infinity`.
pub(super) fn span(text: &str) -> Result<Option<u64>, String> {
    const UNITS: [(&[&str], f64); 9] = [
        (&["usec", "us", "µs", "μs"], 0.001),
        (&["msec", "ms"], 1.0),
        (&["seconds", "second", "sec", "s", ""], 1_000.0),
        (&["minutes", "minute", "min", "m"], 60_000.0),
        (&["hours", "hour", "hr", "h"], 3_600_000.0),
        (&["days", "day", "d"], 86_400_000.0),
        (&["weeks", "week", "w"], 604_800_000.0),
        (&["months", "month", "M"], 2_629_800_000.0),
        (&["years", "year", "y"], 31_557_600_000.0),
    ];
    /// A hundred years.
    const MOST_MS: f64 = 3_155_760_000_000.0;
    let error = || {
        format!(
            "{text:?} is no time span; a number with a unit such as 30s, 5min, 1h or 2d is expected"
        )
    };
    let mut rest = text.trim();
    if rest == "infinity" {
        return Ok(None);
    }
    if rest.is_empty() {
        return Err(error());
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, after) = rest.split_at(end.unwrap_or(rest.len()));
        let number: f64 = number.parse().map_err(|_| error())?;
        let after = after.trim_start();
        let end = after.find(|c: char| c.is_ascii_digit() || c.is_whitespace());
        let (unit, after) = after.split_at(end.unwrap_or(after.len()));
        let (_, factor) = UNITS
            .iter()
            .find(|(names, _)| names.contains(&unit))
            .ok_or_else(error)?;
        total += number * factor;
        rest = after.trim_start();
    }
    if total > MOST_MS {
        return Err(format!("{text:?} is longer than a hundred years"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and a hundred years"
    )]
    Ok(Some(total.round() as u64))
}
