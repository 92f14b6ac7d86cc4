//! A serialised job is read back as the same job, by serde and by the decoder of job files.

use std::collections::BTreeSet;

use cueline_model::handler::{CommandSpec, HttpSpec, Interpreter, ProcessSpec, ShellSpec};
use cueline_model::limit::{MAX_CONCURRENCY, MAX_RATE};
use cueline_model::schedule::CronSchedule;
use cueline_model::script::{LoadedScript, ScriptUse};
use cueline_model::{
    After, AfterOn, Backoff, Block, Concurrency, DstRule, DurationMs, Fence, GroupName,
    HandlerSpec, JobName, JobSpec, Misfire, MisfirePolicy, Namespace, OnLost, Parents, Rate,
    RateLimit, RatePer, Retention, Retry, Route, RunState, Schedule, Scope, SecretName,
    TextOrSecret, Timestamp, decode,
};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

fn duration(min_ms: u64) -> impl Strategy<Value = DurationMs> {
    (min_ms..3_650 * 86_400_000).prop_map(DurationMs::millis)
}

/// Instants within the range of RFC 3339, and a few beyond it.
fn instant() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        9 => 0..4_000_000_000_000_i64,
        1 => 300_000_000_000_000..i64::MAX,
    ]
    .prop_map(Timestamp::from_millis)
}

fn text() -> impl Strategy<Value = String> {
    "[^\u{0}]{0,20}"
}

fn text_or_secret() -> impl Strategy<Value = TextOrSecret> {
    let secret = "[A-Za-z0-9_-][A-Za-z0-9._-]{0,9}";
    prop_oneof![
        text().prop_map(TextOrSecret::Text),
        secret.prop_map(|name| name.parse::<SecretName>().unwrap().into()),
    ]
}

fn filled() -> impl Strategy<Value = String> {
    "[a-zäß/ ]{0,8}[a-z$'\"]\n?"
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let dst = of(select(vec![DstRule::Skip, DstRule::Once, DstRule::Both]));
    let cron = (
        select(vec![
            "*/5 2 * * mon-fri",
            "@daily",
            "0 0 12 L-3W * ?",
            "0 0 0 ? JAN FRI#2 2030-2040",
        ]),
        select(vec!["UTC", "Europe/Berlin", "Australia/Lord_Howe"]),
        dst,
    )
        .prop_map(|(expression, zone, dst)| {
            Schedule::Cron(CronSchedule::parse(expression, zone, None, dst).unwrap())
        });
    prop_oneof![
        cron,
        (duration(100), of(instant()))
            .prop_map(|(every, anchor)| Schedule::FixedRate { every, anchor }),
        duration(100).prop_map(|after| Schedule::FixedDelay { after }),
        instant().prop_map(|at| Schedule::Once { at }),
        Just(Schedule::Startup),
        Just(Schedule::Manual),
    ]
}

fn process() -> impl Strategy<Value = ProcessSpec> {
    (
        btree_map("[A-Z][A-Z_ ]{0,5}", text_or_secret(), 0..3),
        any::<bool>(),
        of(filled()),
        of(text_or_secret()),
        of("[a-z]{1,8}"),
    )
        .prop_map(|(env, clear_env, cwd, stdin, run_as)| ProcessSpec {
            env,
            clear_env,
            cwd,
            stdin,
            run_as,
        })
}

fn header_value() -> impl Strategy<Value = TextOrSecret> {
    prop_oneof![
        "[a-zé ]{0,8}".prop_map(TextOrSecret::Text),
        "[a-z]{1,8}".prop_map(|name| name.parse::<SecretName>().unwrap().into()),
    ]
}

fn handler() -> impl Strategy<Value = HandlerSpec> {
    let http = (
        "https?://[a-z]{1,8}(:80)?(/[a-z]{0,5}){0,2}",
        select(vec!["GET", "POST", "M-SEARCH"]),
        btree_map("[a-z-]{1,8}", header_value(), 0..3),
        of(text_or_secret()),
        vec(100..600_u16, 0..3),
        0..=HttpSpec::MAX_REDIRECTS,
    )
        .prop_map(|(url, method, headers, body, expect, redirects)| {
            HandlerSpec::from(HttpSpec {
                url,
                method: method.to_owned(),
                headers,
                body,
                expect,
                redirects,
            })
        });
    let interpreters = Interpreter::ALL.map(|(_, interpreter)| interpreter);
    prop_oneof![
        "[a-z.:-]{1,20}".prop_map(HandlerSpec::Native),
        (
            filled(),
            select(interpreters.to_vec()),
            of(filled()),
            process()
        )
            .prop_map(|(script, interpreter, shell, process)| HandlerSpec::from(
                ShellSpec {
                    script,
                    interpreter,
                    shell,
                    process,
                }
            )),
        (
            "[a-z][a-z.:_-]{0,12}",
            of(1..=i64::from(u32::MAX)),
            process()
        )
            .prop_map(|(name, version, process)| {
                HandlerSpec::from(ScriptUse {
                    name,
                    version,
                    process,
                    loaded: LoadedScript::default(),
                })
            }),
        (filled(), vec(text(), 0..3), process()).prop_map(|(program, arguments, process)| {
            HandlerSpec::from(CommandSpec {
                argv: std::iter::once(program).chain(arguments).collect(),
                process,
            })
        }),
        http,
    ]
}

fn retry() -> impl Strategy<Value = Retry> {
    (
        0..=1_000_u32,
        select(vec![Backoff::Fixed, Backoff::Exponential]),
        duration(0),
        duration(0),
        0..=100_u8,
        proptest::sample::subsequence(RunState::FAILURES.to_vec(), 0..=4),
    )
        .prop_map(|(max, backoff, first, cap, jitter_percent, on)| Retry {
            max,
            backoff,
            first,
            cap,
            jitter_percent,
            on,
        })
}

fn route() -> impl Strategy<Value = Route> {
    prop_oneof![
        select(vec![
            Route::First,
            Route::Last,
            Route::Round,
            Route::Random,
            Route::ConsistentHash,
            Route::Lfu,
            Route::Lru,
            Route::Failover,
            Route::Busyover,
            Route::LeastLoaded,
            Route::Weighted,
            Route::Any,
            Route::Broadcast,
        ]),
        "[a-z]{1,9}".prop_map(|name| Route::Executor(name.parse().unwrap())),
        vec(text(), 1..5).prop_map(Route::Sharded),
    ]
}

fn misfire() -> impl Strategy<Value = Misfire> {
    let policies = vec![
        MisfirePolicy::Skip,
        MisfirePolicy::FireOnce,
        MisfirePolicy::CatchUp,
    ];
    (select(policies), duration(0), 1..=10_000_u32).prop_map(|(policy, grace, catch_up_limit)| {
        Misfire {
            policy,
            grace,
            catch_up_limit,
        }
    })
}

fn block() -> impl Strategy<Value = Block> {
    prop_oneof![
        select(vec![Block::Serial, Block::Discard, Block::Cover]),
        (1..=10_000_u32).prop_map(Block::Parallel),
    ]
}

/// No log and no output is kept longer than its run.
fn retention() -> impl Strategy<Value = Retention> {
    let kept = || of((60_000..1_000_000_u64).prop_map(DurationMs::millis));
    (kept(), of(1..=1_000_000_u32), kept(), kept()).prop_map(|(age, runs, logs, outputs)| {
        let within =
            |kept: Option<DurationMs>| kept.map(|kept| age.map_or(kept, |age| kept.min(age)));
        Retention {
            age,
            runs,
            logs: within(logs),
            outputs: within(outputs),
        }
    })
}

fn limits() -> impl Strategy<Value = (Option<RateLimit>, Option<Concurrency>)> {
    let per = select(vec![RatePer::Second, RatePer::Minute, RatePer::Hour]);
    let rate = (1..=MAX_RATE, per, of("[a-z]{1,9}")).prop_map(|(count, per, key)| RateLimit {
        rate: Rate { count, per },
        key,
    });
    let concurrency =
        ("[a-z]{1,9}", 1..=MAX_CONCURRENCY).prop_map(|(key, limit)| Concurrency { key, limit });
    (of(rate), of(concurrency))
}

prop_compose! {
    fn spec()(
        (name, group, description) in ("[a-zä0-9_][a-z.:_-]{0,20}", "[a-z]{1,9}", text()),
        (schedule, handler, route, block) in (schedule(), handler(), route(), block()),
        (start_at, length) in (of(0..2_000_000_000_000_i64), of(1..1_000_000_000_u64)),
        (jitter, timeout, kill_grace, dispatch_deadline) in
            (duration(0), of(duration(1)), duration(0), duration(0)),
        (misfire, retry, rerun, keep) in (misfire(), retry(), any::<bool>(), any::<bool>()),
        (backlog, priority, enabled, params) in (0..=100_000_u32, 0..=9_u8, of(any::<bool>()), of(text())),
        (parents, pass_output) in (of(parents()), any::<bool>()),
        namespace in select(vec!["default", "team-a", "ä.b:c"]),
        labels in btree_map("[a-z]{1,8}", text(), 0..3),
        selector in select(vec!["", "zone=a", "zone!=b,!spot,gpu"]),
        retention in retention(),
        (rate_limit, concurrency) in limits(),
    ) -> JobSpec {
        let start_at = start_at.map(Timestamp::from_millis);
        let namespace: Namespace = namespace.parse().unwrap();
        JobSpec {
            calendars: Vec::new(),
            retention,
            rate_limit: rate_limit.map(Box::new),
            concurrency: concurrency.map(Box::new),
            name: JobName::in_namespace(&namespace, &name).unwrap(),
            group: GroupName::in_namespace(&namespace, &group).unwrap(),
            description,
            schedule,
            start_at,
            end_at: length.map(|length| start_at.unwrap_or_default().plus_ms(length)),
            jitter,
            misfire,
            route,
            selector: selector.parse().unwrap(),
            block,
            scope: Scope::Executor,
            backlog,
            timeout,
            kill_grace,
            retry,
            on_lost: if rerun { OnLost::Rerun } else { OnLost::Fail },
            fence: if keep { Fence::Keep } else { Fence::Stop },
            dispatch_deadline,
            priority,
            handler,
            params,
            after: parents.map(|(names, all, on)| {
                let names = names.iter();
                let names = names.map(|name| JobName::in_namespace(&namespace, name).unwrap());
                Box::new(After {
                    parents: if all { Parents::All(names.collect()) } else { Parents::Any(names.collect()) },
                    on,
                    pass_output,
                })
            }),
            labels,
            enabled,
        }
    }
}

/// The names of parents, whether all of them are waited for, and their required end.
fn parents() -> impl Strategy<Value = (BTreeSet<String>, bool, AfterOn)> {
    let on = select(vec![AfterOn::Success, AfterOn::Failure, AfterOn::Always]);
    (
        btree_set("P[a-z]{0,9}", 1..=After::MAX_PARENTS),
        any::<bool>(),
        on,
    )
}

/// Any small JSON value.
fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        ".{0,12}".prop_map(Into::into),
        "[0-9*/,LW#?@ -]{0,20}".prop_map(Into::into),
        "[0-9a-z:-]{0,20}".prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        let keys = select(vec![
            "cron", "every", "at", "shell", "script", "version", "argv", "url", "max", "on", "all",
            "sharded", "parallel", "executor", "env", "name", "policy", "count", "per", "key",
            "limit",
        ]);
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Into::into),
            btree_map(keys, inner, 0..4).prop_map(|map| {
                map.into_iter()
                    .map(|(k, v)| (k.to_owned(), v))
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            }),
        ]
    })
}

proptest! {
    #[test]
    fn both_readers_accept_the_serialised_form(spec in spec()) {
        let written = serde_json::to_value(&spec).unwrap();
        prop_assert_eq!(&decode::job(&written.clone().into()).map_err(|p| p[0].to_string()), &Ok(spec.clone()));
        prop_assert_eq!(serde_json::from_value::<JobSpec>(written).unwrap(), spec);
    }

    #[test]
    fn any_value_of_a_field_is_accepted_or_refused_with_a_reason(
        spec in spec(), field in 0..29_usize, value in json(),
    ) {
        let mut written = serde_json::to_value(&spec).unwrap();
        let fields = [
            "name", "group", "description", "schedule", "start_at", "end_at", "jitter", "misfire", "route", "block",
            "scope", "backlog", "timeout", "kill_grace", "retry", "on_lost", "fence", "dispatch_deadline",
            "priority", "handler", "params", "after", "labels", "enabled", "namespace", "selector",
            "retention", "rate_limit", "concurrency",
        ];
        written[fields[field]] = value;
        match decode::job(&written.into()) {
            Ok(spec) => {
                let again = serde_json::to_value(&spec).unwrap();
                prop_assert_eq!(decode::job(&again.into()), Ok(spec));
            }
            Err(problems) => {
                prop_assert!(!problems.is_empty());
                prop_assert!(problems.iter().all(|problem| !problem.message.is_empty()));
            }
        }
    }
}
