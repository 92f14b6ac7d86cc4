//! The jobs of a storm: 300 runs per second over all block policies and routing strategies.

use serde_json::{Value, json};

use crate::{ExecutionLog, program};

/// The form in which an attempt runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandlerKind {
    /// A function in the worker's process.
    Native,
    /// A process of its own.
    Command,
}

/// Jobs that differ only in their number.
#[derive(Debug, Clone)]
pub struct JobKind {
    /// The names of the jobs start with this and end with a number.
    pub prefix: &'static str,
    pub count: usize,
    pub every_ms: i64,
    /// The number of runs per fire time.
    pub shards: usize,
    handler: HandlerKind,
    hold_ms: u32,
    linger_ms: u32,
    fail_below: u32,
    /// `None` if each fire time gets its run, however late.
    pub misfire: Option<MisfireRule>,
    /// More fields of the definition.
    fields: Value,
}

/// A misfire policy with a grace so short that faults of the store cause misfires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MisfireRule {
    /// `skip`, `fire_once` or `catch_up`.
    pub policy: &'static str,
    pub grace_ms: i64,
    pub catch_up_limit: usize,
}

impl JobKind {
    fn new(prefix: &'static str, count: usize, block: &Value, route: &Value) -> Self {
        Self {
            prefix,
            count,
            every_ms: 500,
            shards: 1,
            handler: HandlerKind::Native,
            hold_ms: 20,
            linger_ms: 0,
            fail_below: 0,
            misfire: None,
            fields: json!({ "block": block, "route": route, "scope": "executor", "kill_grace": "1s" }),
        }
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.fields[key] = value;
        self
    }

    /// Sets the duration of an attempt to `hold_ms`. It continues for `linger_ms` after a request to stop.
    fn taking(self, hold_ms: u32, linger_ms: u32) -> Self {
        Self {
            hold_ms,
            linger_ms,
            ..self
        }
    }

    /// A misfire means that a fire time is found more than a second late.
    fn misfiring(policy: &'static str) -> Self {
        let prefix = match policy {
            "skip" => "misfire-skip",
            "fire_once" => "misfire-once",
            _ => "misfire-catch",
        };
        let rule = MisfireRule {
            policy,
            grace_ms: 1_000,
            catch_up_limit: 4,
        };
        let fields = json!({
            "policy": rule.policy,
            "grace": format!("{}ms", rule.grace_ms),
            "catch_up_limit": rule.catch_up_limit,
        });
        Self {
            misfire: Some(rule),
            ..Self::new(prefix, 3, &json!("serial"), &json!("round"))
        }
        .with("misfire", fields)
    }

    fn command(self) -> Self {
        Self {
            handler: HandlerKind::Command,
            every_ms: 1_000,
            ..self
        }
    }

    /// The names of its jobs.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let prefix = self.prefix;
        (0..self.count).map(move |i| format!("{prefix}-{i}"))
    }

    /// Whether the job is of this kind.
    pub fn has(&self, job: &str) -> bool {
        job.rsplit_once('-')
            .is_some_and(|(prefix, _)| prefix == self.prefix)
    }

    /// Its block policy.
    pub fn block(&self) -> &str {
        self.fields["block"].as_str().unwrap_or("parallel")
    }

    /// The most attempts that run at once in a lane.
    pub fn slots(&self) -> usize {
        let parallel = self.fields["block"]["parallel"].as_u64();
        parallel.map_or(1, |slots| usize::try_from(slots).unwrap_or(usize::MAX))
    }

    /// Whether each shard has a lane of its own.
    pub fn has_lane_per_shard(&self) -> bool {
        self.fields["route"]["sharded"].is_array()
    }

    /// Whether all executors share a lane.
    pub fn has_group_lane(&self) -> bool {
        self.fields["scope"] == "group"
    }

    /// The executor that names the lane of an attempt there; empty if all executors share it.
    pub fn lane_executor<'a>(&self, executor: &'a str) -> &'a str {
        if self.has_group_lane() { "" } else { executor }
    }

    /// Whether a fire time has a run for each live executor.
    pub fn is_broadcast(&self) -> bool {
        self.fields["route"] == "broadcast"
    }

    /// Whether the handler runs in the worker's process.
    pub fn is_native(&self) -> bool {
        self.handler == HandlerKind::Native
    }

    /// Whether a lost run is repeated.
    pub fn reruns(&self) -> bool {
        self.fields["on_lost"] == "rerun"
    }

    /// Whether the first attempts of a run fail.
    pub fn fails(&self) -> bool {
        self.fail_below > 0
    }

    /// Whether runs start as soon as they are due while no fault is present.
    pub fn is_prompt(&self) -> bool {
        // A lane of the group waits for the failover of its executor.
        self.is_native()
            && self.hold_ms < 100
            && self.fail_below == 0
            && self.misfire.is_none()
            && !self.has_group_lane()
    }

    fn definition(&self, name: &str, log: &ExecutionLog) -> Value {
        let mut job = definition(name, &format!("{}ms", self.every_ms));
        match self.handler {
            HandlerKind::Native => {
                let behaviour = json!({
                    "hold_ms": self.hold_ms,
                    "linger_ms": self.linger_ms,
                    "fail_below": self.fail_below,
                    "exclusive": self.block() != "parallel",
                    "group": self.has_group_lane(),
                });
                job["handler"] = json!({ "native": "record" });
                job["params"] = behaviour.to_string().into();
            }
            HandlerKind::Command => {
                let (program, file) = (program::test_command(), log.path());
                job["handler"] = json!({ "command": [program.to_str(), file.to_str(), self.hold_ms.to_string()] });
            }
        }
        for (key, value) in self.fields.as_object().into_iter().flatten() {
            job[key] = value.clone();
        }
        job
    }
}

/// A job in which each fire time gets its run, however late.
pub fn definition(name: &str, every: &str) -> Value {
    json!({
        "name": name,
        "schedule": { "every": every },
        "misfire": { "policy": "catch_up", "grace": "1h", "catch_up_limit": 10_000 },
        "dispatch_deadline": "10m",
    })
}

/// All kinds with a schedule.
pub fn kinds() -> Vec<JobKind> {
    let kind = JobKind::new;
    let (hash, round) = (&json!("consistent_hash"), &json!("round"));
    let serial = &json!("serial");
    let slow = |kind: JobKind| JobKind {
        every_ms: 1_000,
        ..kind
    };
    vec![
        kind("serial", 21, serial, hash),
        kind("round", 20, serial, round),
        // Their executors share a lane. The slow ones are at work most of the time.
        kind("group", 10, serial, round).with("scope", json!("group")),
        slow(kind("group-slow", 6, serial, &json!("random")))
            .with("scope", json!("group"))
            .taking(800, 100),
        kind("parallel", 20, &json!({ "parallel": 2 }), &json!("random")),
        kind("first", 10, serial, &json!("first")),
        // Every other trigger meets a lane that has been idle for longer than the checker's tolerance.
        kind("discard", 15, &json!("discard"), hash).taking(600, 0),
        kind("cover", 15, &json!("cover"), hash).taking(700, 150),
        kind("rerun", 15, serial, round)
            .with("on_lost", json!("rerun"))
            .taking(60, 0),
        // Long enough that some of them are running at each fault.
        slow(kind("long", 10, &json!({ "parallel": 4 }), round))
            .with("on_lost", json!("rerun"))
            .taking(1_500, 300),
        // Longer than a failover. Without the worker's fence, two attempts of a run would overlap.
        JobKind {
            every_ms: 4_000,
            ..kind("lasting", 4, &json!({ "parallel": 10 }), round)
                .with("on_lost", json!("rerun"))
                .taking(20_000, 200)
        },
        JobKind {
            shards: 3,
            ..slow(kind(
                "sharded",
                5,
                serial,
                &json!({ "sharded": ["a", "b", "c"] }),
            ))
        },
        JobKind {
            shards: 3,
            ..slow(kind("broadcast", 5, serial, &json!("broadcast")))
        },
        slow(kind("parent", 5, serial, round)).taking(10, 0),
        JobKind::misfiring("skip"),
        JobKind::misfiring("fire_once"),
        JobKind::misfiring("catch_up"),
        // These runs fail twice and are retried.
        JobKind {
            fail_below: 3,
            ..slow(kind("flaky", 4, serial, &json!("random"))).taking(5, 0)
        }
        .with("retry", json!({ "max": 2, "first": "50ms" })),
        kind("program", 4, serial, round)
            .with("on_lost", json!("rerun"))
            .command(),
        kind("program-discard", 1, &json!("discard"), hash)
            .taking(1_400, 0)
            .command(),
        kind("program-cover", 2, &json!("cover"), hash)
            .taking(1_400, 0)
            .command(),
    ]
}

/// The definitions of all kinds, and of the jobs that run after `parent`.
pub fn definitions(log: &ExecutionLog) -> Vec<Value> {
    let mut jobs = Vec::new();
    for kind in kinds() {
        for name in kind.names() {
            jobs.push(kind.definition(&name, log));
        }
    }
    for i in 0..5 {
        jobs.push(json!({
            "name": format!("child-{i}"),
            "after": format!("parent-{i}"),
            "handler": { "native": "record" },
            "params": json!({ "hold_ms": 5 }).to_string(),
        }));
    }
    jobs
}

/// The number of runs of all these jobs per second.
pub fn fires_per_second() -> f64 {
    let per_ms = kinds().iter().fold(0.0, |sum, kind| {
        let runs = u32::try_from(kind.count * kind.shards).unwrap_or(u32::MAX);
        let every = u32::try_from(kind.every_ms).unwrap_or(1);
        sum + f64::from(runs) / f64::from(every)
    });
    // Each run of `parent` has a child run.
    per_ms * 1_000.0 + 5.0
}
