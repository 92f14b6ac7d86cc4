//! `cueline alarm …`: rules, channels and silences, what was raised, and what was delivered.

pub(crate) mod args;
mod lists;

use std::time::Duration;

use cueline_api::view::{
    AppliedAlarmView, ChannelTest, ChannelView, DeliveryView, RuleView, SilenceRef,
};
use cueline_interface::{Failure, Out, Paint, jobfile};
use cueline_model::Namespace;
use cueline_model::decode::Alarms;
use cueline_store::Change;
use serde::Serialize;
use serde_json::{Map, Value, json};

use self::args::{
    AlarmApplyArgs, AlarmCommand, DefinitionCommand, SilenceArgs, SilenceCommand, SilenceIds,
    TestArgs,
};
use crate::client::{Api, read};
use crate::human::one_line;

/// How often a delivery is asked for.
const ASK_EVERY: Duration = Duration::from_millis(200);

pub(crate) async fn run(api: &Api, out: Out, command: AlarmCommand) -> Result<(), Failure> {
    match command {
        AlarmCommand::List(args) => lists::alarms(api, out, &args).await,
        AlarmCommand::Deliveries(args) => lists::deliveries(api, out, &args).await,
        AlarmCommand::Apply(args) => apply(api, out, &args).await,
        AlarmCommand::Rule(DefinitionCommand::List) => lists::rules(api, out).await,
        AlarmCommand::Channel(DefinitionCommand::List) => lists::channels(api, out).await,
        AlarmCommand::Rule(DefinitionCommand::Show(arg)) => {
            let answer = api.get(&["alarms", "rules", &arg.name], &[]).await?;
            if out.is_json() {
                return out.json(&answer);
            }
            let rule: RuleView = read(answer)?;
            show(out, rule.name.local(), rule.version, &rule.definition)
        }
        AlarmCommand::Channel(DefinitionCommand::Show(arg)) => {
            let answer = api.get(&["alarms", "channels", &arg.name], &[]).await?;
            if out.is_json() {
                return out.json(&answer);
            }
            let channel: ChannelView = read(answer)?;
            show(
                out,
                channel.name.local(),
                channel.version,
                &channel.definition,
            )
        }
        AlarmCommand::Rule(DefinitionCommand::Delete(arg)) => {
            let answer = api.delete(&["alarms", "rules", &arg.name]).await?;
            said(out, &answer, &format!("alarm rule {} is deleted", arg.name))
        }
        AlarmCommand::Channel(DefinitionCommand::Delete(arg)) => {
            let answer = api.delete(&["alarms", "channels", &arg.name]).await?;
            said(
                out,
                &answer,
                &format!("alarm channel {} is deleted", arg.name),
            )
        }
        AlarmCommand::Silence(SilenceCommand::Start(args)) => start(api, out, &args).await,
        AlarmCommand::Silence(SilenceCommand::List) => lists::silences(api, out).await,
        AlarmCommand::Silence(SilenceCommand::End(args)) => end(api, out, &args).await,
        AlarmCommand::Test(args) => test(api, out, &args).await,
    }
}

fn said(out: Out, answer: &Value, text: &str) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(answer);
    }
    out.line(text)
}

fn show(out: Out, name: &str, version: i64, definition: &impl Serialize) -> Result<(), Failure> {
    let definition = serde_json::to_value(definition)
        .map_err(|error| Failure::failed(format!("failed to print the definition: {error}")))?;
    for (label, text) in [("name", name.to_owned()), ("version", version.to_string())] {
        out.line(&format!("{:<9} {text}", out.paint(label, Paint::Dim)))?;
    }
    out.line(&out.paint("definition", Paint::Dim))?;
    out.json(&definition)
}

/// Channels come first: rules name them.
async fn apply(api: &Api, out: Out, args: &AlarmApplyArgs) -> Result<(), Failure> {
    let mut alarms = Alarms::default();
    let mut messages = Vec::new();
    for file in &args.files {
        match jobfile::read_alarms(file, api.namespace()) {
            Ok(found) => {
                alarms.channels.extend(found.channels);
                alarms.rules.extend(found.rules);
            }
            Err(error) => messages.extend(error.messages),
        }
    }
    if !messages.is_empty() {
        let summary = Some("nothing was applied".to_owned());
        return Err(Failure::BadInput { messages, summary });
    }
    let mut applied = Vec::new();
    for channel in &alarms.channels {
        let name = &channel.name;
        let one = put(api, "channels", &name.namespace(), name.local(), channel).await?;
        applied.push(("channel", one));
    }
    for rule in &alarms.rules {
        let name = &rule.name;
        let one = put(api, "rules", &name.namespace(), name.local(), rule).await?;
        applied.push(("rule", one));
    }
    if out.is_json() {
        let of = |wanted: &str| {
            let own = applied.iter().filter(|(what, _)| *what == wanted);
            own.map(|(_, one)| one.clone()).collect::<Vec<Value>>()
        };
        return out.json(&json!({ "channels": of("channel"), "rules": of("rule") }));
    }
    print_applied(out, applied)
}

fn print_applied(out: Out, applied: Vec<(&str, Value)>) -> Result<(), Failure> {
    let mut counts = [0_usize; 3];
    for (what, one) in applied {
        let one: AppliedAlarmView = read(one)?;
        let (index, word, paint) = match one.change {
            Change::Created => (0, "created", Paint::Good),
            Change::Updated => (1, "changed", Paint::Warn),
            Change::Unchanged => (2, "unchanged", Paint::Dim),
        };
        counts[index] += 1;
        if one.change != Change::Unchanged {
            let word = out.paint(word, paint);
            out.line(&format!("{word:<9} alarm {what} {}", one.name))?;
        }
    }
    let [created, changed, unchanged] = counts;
    out.line(&format!(
        "alarms: {created} created, {changed} changed, {unchanged} unchanged"
    ))
}

async fn put(
    api: &Api,
    list: &str,
    namespace: &Namespace,
    local: &str,
    definition: &impl Serialize,
) -> Result<Value, Failure> {
    let body = serde_json::to_value(definition)
        .map_err(|error| Failure::failed(format!("failed to write the definition: {error}")))?;
    let api = api.in_namespace(namespace);
    api.put(&["alarms", list, local], &body).await
}

impl SilenceArgs {
    fn body(&self) -> Value {
        let mut body = Map::new();
        for (key, names) in [
            ("rules", &self.rules),
            ("jobs", &self.jobs),
            ("groups", &self.groups),
        ] {
            if !names.is_empty() {
                body.insert(key.to_owned(), json!(names));
            }
        }
        if !self.labels.is_empty() {
            let labels = self.labels.iter();
            let labels: Map<String, Value> = labels
                .map(|(name, value)| (name.clone(), value.as_str().into()))
                .collect();
            body.insert("labels".to_owned(), labels.into());
        }
        body.insert("reason".to_owned(), self.reason.as_str().into());
        if let Some(length) = &self.length {
            body.insert("for".to_owned(), length.as_str().into());
        }
        for (key, at) in [("until", self.until), ("from", self.from)] {
            if let Some(at) = at {
                body.insert(key.to_owned(), at.as_millis().into());
            }
        }
        Value::Object(body)
    }
}

async fn start(api: &Api, out: Out, args: &SilenceArgs) -> Result<(), Failure> {
    let answer = api.post(&["alarms", "silences"], &args.body()).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let silence: SilenceRef = read(answer)?;
    let id = silence.id;
    out.line(&format!(
        "silence {id} has begun; `cueline alarm silence end {id}` ends it"
    ))
}

async fn end(api: &Api, out: Out, args: &SilenceIds) -> Result<(), Failure> {
    let mut ended = Vec::new();
    for id in &args.ids {
        let answer = api.delete(&["alarms", "silences", &id.to_string()]).await?;
        if !out.is_json() {
            out.line(&format!("silence {id} has ended"))?;
        }
        ended.push(answer);
    }
    if out.is_json() {
        return out.json(&json!({ "ended": ended }));
    }
    Ok(())
}

async fn test(api: &Api, out: Out, args: &TestArgs) -> Result<(), Failure> {
    let path = ["alarms", "channels", &args.channel, "test"];
    let answer = api.post(&path, &json!({})).await?;
    let asked: ChannelTest = read(answer)?;
    let id = asked.delivery.to_string();
    let wait = Duration::from_secs(u64::from(args.wait));
    let answered = tokio::time::timeout(wait, answer_of(api, &id)).await;
    let Ok(answered) = answered else {
        return Err(Failure::failed(format!(
            "no answer within {} s; `cueline alarm deliveries` shows delivery {id}. A scheduler of this version has to run",
            args.wait
        )));
    };
    let answer = answered?;
    let delivery: DeliveryView = read(answer.clone())?;
    let is_delivered = delivery.state == "delivered";
    if out.is_json() {
        out.json(&answer)?;
    } else if is_delivered {
        out.line(&format!(
            "{}: {}",
            out.paint("delivered", Paint::Good),
            one_line(&delivery.answer, 200)
        ))?;
    }
    if is_delivered {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "the channel has not accepted the message: {}",
        one_line(&delivery.answer, 500)
    )))
}

/// Waits until the delivery has ended. The caller bounds the time.
async fn answer_of(api: &Api, id: &str) -> Result<Value, Failure> {
    loop {
        let answer = api.get(&["alarms", "deliveries", id], &[]).await?;
        if answer["state"] != "pending" {
            return Ok(answer);
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(subcommand)]
        command: AlarmCommand,
    }

    fn parse(words: &[&str]) -> Result<AlarmCommand, clap::Error> {
        let words = std::iter::once(&"alarm").chain(words);
        Alone::try_parse_from(words).map(|alone| alone.command)
    }

    #[test]
    fn only_what_is_given_is_sent() {
        let words = [
            "silence", "start", "--job", "a", "--label", "tier=1", "--for", "2h", "--reason", "x",
        ];
        let Ok(AlarmCommand::Silence(SilenceCommand::Start(args))) = parse(&words) else {
            panic!("is a silence");
        };
        let expected =
            json!({ "jobs": ["a"], "labels": { "tier": "1" }, "for": "2h", "reason": "x" });
        assert_eq!(args.body(), expected);
    }

    #[test]
    fn a_silence_has_an_end_and_a_reason() {
        assert!(parse(&["silence", "start", "--reason", "x"]).is_err());
        assert!(parse(&["silence", "start", "--for", "1h"]).is_err());
        assert!(parse(&["silence", "end"]).is_err());
        assert!(parse(&["test"]).is_err());
    }
}
