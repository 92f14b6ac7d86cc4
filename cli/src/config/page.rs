//! The tables of `docs/configuration.md` are made from the settings; this test holds the page to them.

use super::settings::{Preset, Role, Setting, Shape};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");

fn kind(setting: &Setting) -> &'static str {
    match (setting.shape, setting.value) {
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

fn row(setting: &Setting) -> String {
    let preset = match setting.preset {
        Preset::Required => "**required**".to_owned(),
        Preset::None => "–".to_owned(),
        Preset::Is(text) => format!("`{text}`"),
        Preset::Found(text) => text.to_owned(),
    };
    let flag = setting
        .flag()
        .map_or_else(|| "–".to_owned(), |flag| format!("`--{flag}`"));
    format!(
        "| `{}` | {} | {preset} | {flag} | `{}` | {} |\n",
        setting.key,
        kind(setting),
        setting.variable(),
        setting.meaning.replace('|', "\\|")
    )
}

fn table(role: Role) -> String {
    let heading = "| key | type | default | flag | variable | meaning |\n| --- | --- | --- | --- | --- | --- |\n";
    let rows: String = role.settings().iter().map(row).collect();
    format!("{heading}{rows}")
}

#[test]
fn the_page_has_the_settings_as_they_are() {
    let page = std::fs::read_to_string(PAGE).expect("docs/configuration.md");
    let mut made = page.clone();
    for role in Role::ALL {
        let (begin, end) = (format!("<!-- {} -->\n", role.name()), "<!-- end -->\n");
        let (before, rest) = made.split_once(&begin).expect("the role's marker");
        let (_, after) = rest.split_once(end).expect("the end of its table");
        made = format!("{before}{begin}{}{end}{after}", table(role));
    }
    if page != made && std::env::var_os("CUELINE_TEST_BLESS").is_some() {
        std::fs::write(PAGE, &made).expect("written");
    }
    assert!(
        page == made,
        "docs/configuration.md is not as the settings are; CUELINE_TEST_BLESS=1 cargo test -p cueline --lib page writes its tables anew"
    );
}
