//! Prints lists of alarms, deliveries, rules, channels and silences.

use cueline_api::view::{
    AlarmPage, AlarmView, ChannelList, DeliveryPage, RuleList, SilenceList, SilenceView,
};
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_model::AlarmRule;
use cueline_model::alarm::Condition;

use super::args::{AlarmListArgs, DeliveryListArgs};
use crate::client::{Api, read};
use crate::human::{self, one_line};
use crate::lists::{List, print_next};
use crate::namespaces::AllNamespaces;

pub(super) async fn alarms(api: &Api, out: Out, args: &AlarmListArgs) -> Result<(), Failure> {
    let mut query = Vec::new();
    query.extend(args.rule.iter().map(|rule| ("rule", rule.clone())));
    query.extend(args.job.iter().map(|job| ("job", job.clone())));
    let list = List {
        path: &["alarms"],
        key: "alarms",
        most: Some(50),
    };
    let answer = list
        .read(api, &query, AllNamespaces::default(), &args.page)
        .await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let page: AlarmPage = read(answer)?;
    let mut table = out.table(&[
        "ALARM",
        "WHEN",
        "RULE",
        "CONDITION",
        "ABOUT",
        "RUN",
        "FATE",
        "MESSAGE",
    ]);
    for alarm in &page.alarms {
        table.add_row(vec![
            cell(alarm.id.to_string(), None),
            cell(human::local(alarm.at, "UTC"), None),
            cell(alarm.rule.local(), None),
            cell(alarm.condition.as_str(), None),
            cell(about(alarm), None),
            cell(
                alarm.run.map_or("-".to_owned(), |run| run.to_string()),
                None,
            ),
            cell(&alarm.fate, Some(fate_paint(&alarm.fate))),
            cell(one_line(&alarm.message, 60), None),
        ]);
    }
    out.print_table(&table, "there are no alarms")?;
    print_next(out, page.next.as_deref())
}

fn about(alarm: &AlarmView) -> String {
    let job = alarm.job.as_ref().map(|job| job.local().to_owned());
    let group = alarm.group.as_ref();
    job.or_else(|| group.map(|group| format!("group {}", group.local())))
        .unwrap_or_else(|| "-".to_owned())
}

fn fate_paint(fate: &str) -> Paint {
    match fate {
        "sent" => Paint::Good,
        "silenced" | "dropped" => Paint::Dim,
        _ => Paint::Warn,
    }
}

pub(super) async fn deliveries(
    api: &Api,
    out: Out,
    args: &DeliveryListArgs,
) -> Result<(), Failure> {
    let query: Vec<_> = args
        .rule
        .iter()
        .map(|rule| ("rule", rule.clone()))
        .collect();
    let list = List {
        path: &["alarms", "deliveries"],
        key: "deliveries",
        most: Some(50),
    };
    let answer = list
        .read(api, &query, AllNamespaces::default(), &args.page)
        .await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let page: DeliveryPage = read(answer)?;
    let mut table = out.table(&[
        "DELIVERY", "WRITTEN", "RULE", "CHANNEL", "ALARMS", "STATE", "SENT", "ANSWER",
    ]);
    for delivery in &page.deliveries {
        let sent = match delivery.attempts {
            1 => "once".to_owned(),
            attempts => format!("{attempts} times"),
        };
        table.add_row(vec![
            cell(delivery.id.to_string(), None),
            cell(human::local(delivery.created_at, "UTC"), None),
            cell(delivery.rule.local(), None),
            cell(delivery.channel.local(), None),
            cell(delivery.alarms.to_string(), None),
            cell(&delivery.state, Some(state_paint(&delivery.state))),
            cell(sent, None),
            cell(one_line(&delivery.answer, 80), None),
        ]);
    }
    out.print_table(&table, "there are no deliveries")?;
    print_next(out, page.next.as_deref())
}

fn state_paint(state: &str) -> Paint {
    match state {
        "delivered" => Paint::Good,
        "failed" => Paint::Bad,
        _ => Paint::Warn,
    }
}

pub(super) async fn rules(api: &Api, out: Out) -> Result<(), Failure> {
    let answer = api.get(&["alarms", "rules"], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let found: RuleList = read(answer)?;
    let mut table = out.table(&["RULE", "STATE", "ON", "ABOUT", "CHANNELS"]);
    for rule in &found.rules {
        let spec = &rule.definition;
        let (state, paint) = if spec.enabled {
            ("on", Paint::Good)
        } else {
            ("off", Paint::Dim)
        };
        let on: Vec<String> = spec.on.iter().map(|on| condition(*on)).collect();
        table.add_row(vec![
            cell(rule.name.local(), None),
            cell(state, Some(paint)),
            cell(one_line(&on.join(", "), 60), None),
            cell(one_line(&scope(spec), 50), None),
            cell(spec.channels.join(", "), None),
        ]);
    }
    out.print_table(
        &table,
        "there are no alarm rules; `cueline alarm apply -f FILE` creates some",
    )
}

fn condition(condition: Condition) -> String {
    let word = condition.kind().as_str();
    match condition {
        Condition::FailedInARow(n) => format!("{word} {n}"),
        Condition::Backlog(n) => format!("{word} > {n}"),
        Condition::Late(after) | Condition::NoExecutor(after) => format!("{word} {after}"),
        _ => word.to_owned(),
    }
}

fn scope(rule: &AlarmRule) -> String {
    let mut parts = Vec::new();
    parts.extend(rule.scope.jobs.iter().cloned());
    parts.extend(
        rule.scope
            .groups
            .iter()
            .map(|group| format!("group {group}")),
    );
    let labels = rule.scope.labels.iter();
    parts.extend(labels.map(|(name, value)| format!("{name}={value}")));
    if parts.is_empty() {
        return "all jobs".to_owned();
    }
    parts.join(", ")
}

pub(super) async fn channels(api: &Api, out: Out) -> Result<(), Failure> {
    let answer = api.get(&["alarms", "channels"], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let found: ChannelList = read(answer)?;
    let mut table = out.table(&["CHANNEL", "KIND", "VERSION"]);
    for channel in &found.channels {
        table.add_row(vec![
            cell(channel.name.local(), None),
            cell(channel.definition.kind.as_str(), None),
            cell(channel.version.to_string(), None),
        ]);
    }
    out.print_table(
        &table,
        "there are no alarm channels; `cueline alarm apply -f FILE` creates some",
    )
}

pub(super) async fn silences(api: &Api, out: Out) -> Result<(), Failure> {
    let answer = api.get(&["alarms", "silences"], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let found: SilenceList = read(answer)?;
    let mut table = out.table(&["SILENCE", "ALARMS", "BY", "FROM", "UNTIL", "REASON"]);
    for silence in &found.silences {
        table.add_row(vec![
            cell(silence.id.to_string(), None),
            cell(one_line(&silenced(silence), 50), Some(Paint::Warn)),
            cell(one_line(&silence.by, 30), None),
            cell(human::local(silence.from, "UTC"), None),
            cell(human::local(silence.until, "UTC"), None),
            cell(one_line(&silence.reason, 60), None),
        ]);
    }
    out.print_table(&table, "nothing is silenced")
}

fn silenced(silence: &SilenceView) -> String {
    let mut parts = Vec::new();
    parts.extend(silence.rules.iter().map(|rule| format!("rule {rule}")));
    parts.extend(silence.jobs.iter().cloned());
    parts.extend(silence.groups.iter().map(|group| format!("group {group}")));
    let labels = silence.labels.iter();
    parts.extend(labels.map(|(name, value)| format!("{name}={value}")));
    if parts.is_empty() {
        return "all".to_owned();
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_shown_with_their_limits() {
        assert_eq!(condition(Condition::FailedInARow(3)), "failed_in_a_row 3");
        assert_eq!(condition(Condition::Backlog(9)), "backlog > 9");
        assert_eq!(condition(Condition::Missed), "missed");
    }
}
