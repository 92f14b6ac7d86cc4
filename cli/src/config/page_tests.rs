//! Tests that the tables of `docs/configuration.md` match the settings. The tables are generated from them.

use super::roles::Role;
use super::schema::{self, Definition, Shape};
use super::{SchedulerConfig, StandaloneConfig, WorkerConfig};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");

fn kind(setting: &Definition) -> &'static str {
    match (Shape::of(setting), schema::value_name(setting)) {
        (Shape::Switch, _) => "true or false",
        (Shape::Number, _) => "number",
        (Shape::List, _) => "list",
        (Shape::Text, "DURATION") => "duration",
        (Shape::Text, "ADDR") => "address",
        (Shape::Text, "URL") => "URL",
        (Shape::Text, "FILE") => "file",
        (Shape::Text, "DIR") => "directory",
        (Shape::Text, _) => "text",
    }
}

fn default<T: Role>(setting: &Definition) -> String {
    let key = setting.get_id().as_str();
    if let Some((_, words)) = T::COMPUTED.iter().find(|(computed, _)| *computed == key) {
        return (*words).to_owned();
    }
    let values: Vec<_> = setting
        .get_default_values()
        .iter()
        .filter_map(|v| v.to_str())
        .collect();
    match (values.is_empty(), setting.is_required_set()) {
        (false, _) => format!("`{}`", values.join(",")),
        (true, true) => "**required**".to_owned(),
        (true, false) => "–".to_owned(),
    }
}

fn row<T: Role>(setting: &Definition) -> String {
    let flag = schema::is_flag(setting)
        .then(|| setting.get_long())
        .flatten();
    let flag = flag.map_or_else(|| "–".to_owned(), |flag| format!("`--{flag}`"));
    let meaning = setting
        .get_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let meaning = meaning.split(" [default: ").next().unwrap_or_default();
    format!(
        "| `{}` | {} | {} | {flag} | `{}` | {} |\n",
        setting.get_id(),
        kind(setting),
        default::<T>(setting),
        schema::variable(setting),
        meaning.replace('|', "\\|")
    )
}

fn with_table<T: Role>(page: &str) -> String {
    let heading = "| key | type | default | flag | variable | meaning |\n| --- | --- | --- | --- | --- | --- |\n";
    let rows: String = schema::definitions::<T>().iter().map(row::<T>).collect();
    let (begin, end) = (format!("<!-- {} -->\n", T::NAME), "<!-- end -->\n");
    let (before, rest) = page.split_once(&begin).expect("the role's marker");
    let (_, after) = rest.split_once(end).expect("the end of its table");
    format!("{before}{begin}{heading}{rows}{end}{after}")
}

#[test]
fn the_page_has_the_settings_as_they_are() {
    let page = std::fs::read_to_string(PAGE).expect("docs/configuration.md");
    let generated = with_table::<StandaloneConfig>(&page);
    let generated = with_table::<SchedulerConfig>(&generated);
    let generated = with_table::<WorkerConfig>(&generated);
    if page != generated && std::env::var_os("CUELINE_TEST_BLESS").is_some() {
        std::fs::write(PAGE, &generated).expect("written");
    }
    assert!(
        page == generated,
        "docs/configuration.md differs from the settings; CUELINE_TEST_BLESS=1 cargo test -p cueline --lib page writes its tables anew"
    );
}

#[test]
fn a_key_is_written_the_same_way_in_each_role() {
    let written = |d: &Definition| (Shape::of(d), schema::value_name(d) == "URL");
    let all: Vec<_> = schema::all().collect();
    for (_, one) in &all {
        for (_, other) in all
            .iter()
            .filter(|(_, other)| other.get_id() == one.get_id())
        {
            assert_eq!(written(one), written(other), "{}", one.get_id());
        }
    }
}
