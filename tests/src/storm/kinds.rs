//! What runs in a storm: three hundred fires a second, over all block policies and routing strategies.

use serde_json::{Value, json};

use crate::Witness;
use crate::witness;

/// How an attempt bears witness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A handler in the worker's own process.
    Native,
    /// A process of its own.
    Command,
}

/// A kind of job.
#[derive(Debug, Clone)]
pub struct Kind {
    /// What the names of its jobs begin with, before a number.
    pub prefix: &'static str,
    /// How many jobs.
    pub count: usize,
    /// How often each fires.
    pub every_ms: i64,
    /// Runs of one fire.
    pub shards: usize,
    by: By,
    hold_ms: u32,
    linger_ms: u32,
    fail_below: u32,
    /// What else the definition says.
    more: Value,
}

impl Kind {
    fn of(prefix: &'static str, count: usize, block: &Value, route: &Value) -> Self {
        Self {
            prefix,
            count,
            every_ms: 500,
            shards: 1,
            by: By::Native,
            hold_ms: 20,
            linger_ms: 0,
            fail_below: 0,
            more: json!({ "block": block, "route": route, "kill_grace": "1s" }),
        }
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.more[key] = value;
        self
    }

    /// Its attempts take their time, and some of it after they were told to stop.
    fn long(self, hold_ms: u32, linger_ms: u32) -> Self {
        Self {
            hold_ms,
            linger_ms,
            ..self
        }
    }

    fn command(self) -> Self {
        Self {
            by: By::Command,
            every_ms: 1_000,
            ..self
        }
    }

    /// Its jobs' names.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let prefix = self.prefix;
        (0..self.count).map(move |i| format!("{prefix}-{i}"))
    }

    /// Whether a job is of this kind.
    pub fn has(&self, job: &str) -> bool {
        job.rsplit_once('-')
            .is_some_and(|(prefix, _)| prefix == self.prefix)
    }

    /// What meets a busy lane there.
    pub fn block(&self) -> &str {
        self.more["block"].as_str().unwrap_or("parallel")
    }

    /// Whether what was lost runs again.
    pub fn reruns(&self) -> bool {
        self.more["on_lost"] == "rerun"
    }

    /// Whether its attempts are made to fail.
    pub fn fails(&self) -> bool {
        self.fail_below > 0
    }

    /// Whether a run starts as soon as it is due, when nothing is in its way.
    pub fn is_prompt(&self) -> bool {
        self.by == By::Native && self.hold_ms < 100 && self.fail_below == 0
    }

    fn definition(&self, name: &str, witness: &Witness) -> Value {
        let mut job = definition(name, &format!("{}ms", self.every_ms));
        match self.by {
            By::Native => {
                let behaviour = json!({
                    "hold_ms": self.hold_ms,
                    "linger_ms": self.linger_ms,
                    "fail_below": self.fail_below,
                    "alone": self.block() != "parallel",
                });
                job["handler"] = json!({ "native": "witness" });
                job["params"] = behaviour.to_string().into();
            }
            By::Command => {
                let (program, file) = (witness::program(), witness.path());
                job["handler"] = json!({ "command": [program.to_str(), file.to_str(), self.hold_ms.to_string()] });
            }
        }
        for (key, value) in self.more.as_object().into_iter().flatten() {
            job[key] = value.clone();
        }
        job
    }
}

/// A job of which each fire time has its run, however late: nothing is ever missed here.
pub fn definition(name: &str, every: &str) -> Value {
    json!({
        "name": name,
        "schedule": { "every": every },
        "misfire": { "policy": "catch_up", "grace": "1h", "catch_up_limit": 10_000 },
        "dispatch_deadline": "10m",
    })
}

/// All kinds that fire by themselves.
pub fn kinds() -> Vec<Kind> {
    let kind = Kind::of;
    let (hash, round) = (&json!("consistent_hash"), &json!("round"));
    let serial = &json!("serial");
    let slow = |kind: Kind| Kind {
        every_ms: 1_000,
        ..kind
    };
    vec![
        kind("serial", 30, serial, hash),
        kind("round", 20, serial, round),
        kind("parallel", 20, &json!({ "parallel": 2 }), &json!("random")),
        kind("first", 10, serial, &json!("first")),
        kind("discard", 15, &json!("discard"), hash).long(700, 0),
        kind("cover", 15, &json!("cover"), hash).long(700, 150),
        kind("rerun", 15, serial, round)
            .with("on_lost", json!("rerun"))
            .long(60, 0),
        // Long enough that some of them run whenever something happens.
        slow(kind("long", 10, &json!({ "parallel": 4 }), round))
            .with("on_lost", json!("rerun"))
            .long(1_500, 300),
        // Longer than it takes to give their executor's work to others: without its fence, two attempts of a run would be there at once.
        Kind {
            every_ms: 4_000,
            ..kind("lasting", 4, &json!({ "parallel": 10 }), round)
                .with("on_lost", json!("rerun"))
                .long(20_000, 200)
        },
        Kind {
            shards: 3,
            ..slow(kind(
                "sharded",
                5,
                serial,
                &json!({ "sharded": ["a", "b", "c"] }),
            ))
        },
        Kind {
            shards: 3,
            ..slow(kind("broadcast", 5, serial, &json!("broadcast")))
        },
        slow(kind("parent", 5, serial, round)).long(10, 0),
        // Fails twice, and is tried again.
        Kind {
            fail_below: 3,
            ..slow(kind("flaky", 4, serial, &json!("random"))).long(5, 0)
        }
        .with("retry", json!({ "max": 2, "first": "50ms" })),
        kind("program", 4, serial, round)
            .with("on_lost", json!("rerun"))
            .command(),
        kind("program-discard", 1, &json!("discard"), hash)
            .long(1_400, 0)
            .command(),
        kind("program-cover", 2, &json!("cover"), hash)
            .long(1_400, 0)
            .command(),
    ]
}

/// Their definitions, and those of the jobs that follow them.
pub fn definitions(witness: &Witness) -> Vec<Value> {
    let mut jobs = Vec::new();
    for kind in kinds() {
        for name in kind.names() {
            jobs.push(kind.definition(&name, witness));
        }
    }
    for i in 0..5 {
        jobs.push(json!({
            "name": format!("child-{i}"),
            "after": format!("parent-{i}"),
            "handler": { "native": "witness" },
            "params": json!({ "hold_ms": 5 }).to_string(),
        }));
    }
    jobs
}

/// How many runs these jobs have in a second.
pub fn fires_per_second() -> f64 {
    let per_ms = kinds().iter().fold(0.0, |sum, kind| {
        let runs = u32::try_from(kind.count * kind.shards).unwrap_or(u32::MAX);
        let every = u32::try_from(kind.every_ms).unwrap_or(1);
        sum + f64::from(runs) / f64::from(every)
    });
    // Each parent has a child.
    per_ms * 1_000.0 + 5.0
}
