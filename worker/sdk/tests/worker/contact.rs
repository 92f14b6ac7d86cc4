//! A worker that cannot reach the broker (G10).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cueline_broker::Channel;
use cueline_model::{Block, DurationMs, Fence, JobId, OutcomeKind};
use cueline_protocol::{HeartbeatMessage, Trigger, decode};
use cueline_runtime::ManualBootClock;
use cueline_worker::{Builder, Context, Error, Failure, StopReason};
use sqlx::Connection;
use tokio::time::timeout;

use crate::link::Link;
use crate::world::{World, run, trigger, with_job};

const WHY: &str =
    "no contact with the broker for 20 s; the schedulers may have given it to another executor";

/// A run, and what it heard when it asked whether it had to stop.
type Answer = (i64, Option<StopReason>);

/// A world whose worker has a link to cut and a clock to move.
struct Scene {
    world: World,
    link: Arc<Link>,
    boot: ManualBootClock,
    /// Runs of `hold` that were told to stop, and why.
    told: Arc<Mutex<Vec<(i64, StopReason)>>>,
    /// Those of `hold` that went on to their end.
    asked: Arc<Mutex<Vec<Answer>>>,
}

impl Scene {
    async fn new() -> Self {
        let world = World::new().await;
        Self {
            link: Link::over(world.driver.clone()),
            world,
            boot: ManualBootClock::default(),
            told: Arc::default(),
            asked: Arc::default(),
        }
    }

    /// A worker that also has the handler `hold`: `gate`, and it says when it is told to stop.
    fn builder(&self) -> Builder {
        let (told, asked) = (Arc::clone(&self.told), Arc::clone(&self.asked));
        let (entered, gate) = (
            Arc::clone(&self.world.entered),
            Arc::clone(&self.world.gate),
        );
        let builder = self.world.builder().broker(self.link.broker());
        let builder = builder.boot_clock(Arc::new(self.boot.clone()));
        builder.handler("hold", move |cx: Context| {
            let (told, asked) = (Arc::clone(&told), Arc::clone(&asked));
            let (entered, gate) = (Arc::clone(&entered), Arc::clone(&gate));
            async move {
                entered.lock().expect("lock").push(cx.run().0);
                tokio::select! {
                    permit = gate.acquire() => {
                        permit.expect("open").forget();
                        asked.lock().expect("lock").push((cx.run().0, cx.stop_reason()));
                    }
                    reason = cx.stopped() => {
                        told.lock().expect("lock").push((cx.run().0, reason));
                        return Err(Failure::new("told to stop"));
                    }
                }
                Ok(())
            }
        })
    }

    async fn wait_told(&self, runs: &[i64]) {
        let fenced = |run: &i64| (*run, StopReason::Fenced);
        let wanted: Vec<_> = runs.iter().map(fenced).collect();
        let told = || (*self.told.lock().expect("lock") == wanted).then_some(());
        self.world.wait("attempts to be told to stop", told).await;
    }

    /// How often contact was tried since; returns after some more tries.
    async fn some_beats(&self, more: usize) {
        let before = self.link.beats.load(Ordering::SeqCst);
        let beats = || (self.link.beats.load(Ordering::SeqCst) >= before + more).then_some(());
        self.world.wait("some more beats", beats).await;
    }

    /// The runs that were reported as ended, in order.
    fn reported(&self) -> Vec<(i64, OutcomeKind)> {
        let ended = |e: cueline_protocol::ReportMessage| match e.event {
            cueline_model::AttemptEvent::Ended { outcome } => Some((e.run.0, outcome.kind)),
            _ => None,
        };
        self.world.events().into_iter().filter_map(ended).collect()
    }
}

fn serial(runs: std::ops::RangeInclusive<i64>) -> Vec<Trigger> {
    runs.map(|n| trigger(n, "hold", Block::Serial)).collect()
}

#[tokio::test]
async fn without_contact_what_runs_is_stopped_what_waits_is_given_back_and_nothing_is_started() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let live = run(scene.builder());
    world.publish(&serial(1..=4)).await;
    world.wait_entered(&[1]).await;
    world.wait_settled().await;
    scene.link.cut(true);
    scene.boot.advance(Duration::from_secs(20));
    scene.some_beats(2).await;
    assert_eq!(*scene.told.lock().expect("lock"), [], "not yet");
    scene.boot.advance(Duration::from_millis(1));
    scene.wait_told(&[1]).await;
    world.publish(&serial(5..=5)).await;
    scene.some_beats(2).await;
    assert_eq!(scene.reported(), []);

    scene.boot.advance(Duration::from_secs(8));
    scene.link.cut(false);
    let lost = world.outcome(1).await;
    assert_eq!(lost.kind, OutcomeKind::Lost);
    let text = lost.message.expect("a message");
    assert_eq!(text, format!("stopped: {WHY}: told to stop"));
    world.gate.add_permits(1);
    assert_eq!(world.outcome(5).await.kind, OutcomeKind::Succeeded);
    let back = world.outcome(2).await;
    assert_eq!(
        (back.message.as_deref(), back.started_at),
        (Some(WHY), None)
    );
    live.drain().await;
    let mut reported = scene.reported();
    reported.retain(|(_, kind)| *kind == OutcomeKind::Returned);
    let returned = [2, 3, 4].map(|run| (run, OutcomeKind::Returned));
    assert_eq!(reported, returned, "in order, once");
    assert_eq!(world.entered(), [1, 5]);
}

#[tokio::test]
async fn what_waits_goes_on_if_contact_is_back_before_the_failover() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let live = run(scene.builder());
    world.publish(&serial(1..=3)).await;
    world.wait_entered(&[1]).await;
    world.wait_settled().await;
    scene.link.lose_echoes(usize::MAX);
    scene.boot.advance(Duration::from_millis(23_999));
    scene.wait_told(&[1]).await;
    assert_eq!(world.outcome(1).await.kind, OutcomeKind::Lost);
    scene.some_beats(2).await;
    assert_eq!(world.entered(), [1], "nothing is started");
    world.gate.add_permits(2);
    scene.link.lose_echoes(0);
    assert_eq!(world.kinds([2, 3]).await, [OutcomeKind::Succeeded; 2]);
    live.drain().await;
    assert_eq!(world.entered(), [1, 2, 3]);
    assert_eq!(scene.reported().len(), 3);
}

#[tokio::test]
async fn what_waits_is_given_back_before_the_failover_without_waiting_for_contact() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let live = run(scene.builder());
    world.publish(&serial(1..=3)).await;
    world.wait_entered(&[1]).await;
    world.wait_settled().await;
    scene.link.lose_echoes(usize::MAX);
    scene.boot.advance(Duration::from_secs(21));
    scene.wait_told(&[1]).await;
    scene.some_beats(2).await;
    world.cancel(2).await;
    assert_eq!(world.outcome(2).await.kind, OutcomeKind::Cancelled);
    assert_eq!(world.outcomes(3), [], "not yet");
    scene.boot.advance(Duration::from_secs(3));
    let back = world.outcome(3).await;
    assert_eq!(back.kind, OutcomeKind::Returned);
    assert_eq!(back.message.as_deref(), Some(WHY));
    live.drain().await;
    assert_eq!(world.entered(), [1]);
}

#[tokio::test]
async fn after_a_pause_nothing_goes_on_even_if_contact_is_there_at_once() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let live = run(scene.builder().concurrency(2));
    world.publish(&serial(1..=3)).await;
    world.wait_entered(&[1]).await;
    world.wait_settled().await;
    scene.boot.advance(Duration::from_mins(1));
    let kinds = world.kinds([1, 2, 3]).await;
    assert_eq!(kinds[0], OutcomeKind::Lost);
    assert_eq!(kinds[1..], [OutcomeKind::Returned; 2]);
    world.gate.add_permits(1);
    world.publish(&serial(4..=4)).await;
    assert_eq!(world.outcome(4).await.kind, OutcomeKind::Succeeded);
    live.drain().await;
    assert_eq!(world.entered(), [1, 4]);
}

#[tokio::test]
async fn a_trigger_that_comes_without_contact_is_left_to_the_broker() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let live = run(scene.builder());
    world.publish(&serial(1..=1)).await;
    world.wait_entered(&[1]).await;
    world.wait_settled().await;
    scene.link.lose_echoes(usize::MAX);
    scene.boot.advance(Duration::from_secs(21));
    scene.wait_told(&[1]).await;
    // A fetch that began before takes it; no further one is made.
    world.publish(&serial(2..=2)).await;
    scene.some_beats(2).await;
    assert_eq!(world.outcomes(2), []);
    world.gate.add_permits(1);
    scene.link.lose_echoes(0);
    assert_eq!(world.outcome(2).await.kind, OutcomeKind::Succeeded);
    live.drain().await;
    assert_eq!(world.outcomes(2).len(), 1);
    assert_eq!(world.entered(), [1, 2]);
}

#[tokio::test]
async fn a_lost_echo_is_made_up_for_long_before_the_next_beat() {
    let scene = Scene::new().await;
    scene.link.lose_echoes(1);
    let builder = scene.builder().beat_every(Duration::from_mins(1));
    let builder = builder.fence_after(Duration::from_secs(200));
    let live = run(builder.failover_after(Duration::from_mins(5)));
    let noop = trigger(1, "noop", Block::Serial);
    scene.world.publish(&[noop]).await;
    scene.world.outcome(1).await;
    live.drain().await;
}

#[tokio::test]
async fn lost_echoes_fence_only_when_their_time_is_over() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let live = run(scene.builder().beat_every(Duration::from_millis(50)));
    world.publish(&serial(1..=1)).await;
    world.wait_entered(&[1]).await;
    for _ in 0..4 {
        scene.link.lose_echoes(1);
        scene.boot.advance(Duration::from_secs(15));
        scene.some_beats(3).await;
    }
    assert_eq!(*scene.told.lock().expect("lock"), []);
    world.gate.add_permits(1);
    assert_eq!(world.outcome(1).await.kind, OutcomeKind::Succeeded);
    live.drain().await;
}

#[tokio::test]
async fn orders_that_the_core_has_no_time_for_cost_no_contact() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let live = run(scene.builder().beat_every(Duration::from_millis(50)));
    world.publish(&serial(1..=1)).await;
    world.wait_entered(&[1]).await;
    world.wait_settled().await;
    let file = world.state_dir().join("journal.db");
    let url = format!("sqlite://{}", file.display());
    let mut other = sqlx::SqliteConnection::connect(&url).await.expect("open");
    let lock = sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await;
    lock.expect("locked");
    // The core tries to write it down, and nothing else.
    world.publish(&serial(2..=2)).await;
    world.wait_fetched().await;
    for n in 0..10_000 {
        world.cancel(1_000 + n).await;
        tokio::task::yield_now().await;
    }
    for _ in 0..4 {
        scene.some_beats(3).await;
        scene.boot.advance(Duration::from_secs(15));
    }
    scene.some_beats(3).await;
    assert_eq!(*scene.told.lock().expect("lock"), []);
    let free = sqlx::query("ROLLBACK").execute(&mut other).await;
    free.expect("free again");
    world.gate.add_permits(2);
    assert_eq!(world.kinds([1, 2]).await, [OutcomeKind::Succeeded; 2]);
    live.drain().await;
}

#[tokio::test]
async fn a_job_that_says_keep_goes_on() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let live = run(scene.builder());
    let kept = with_job(trigger(1, "hold", Block::Serial), |job| {
        job.id = JobId(2);
        job.fence = Fence::Keep;
    });
    let second = with_job(kept.clone(), |_| ());
    let second = Trigger {
        run: cueline_model::RunId(3),
        ..second
    };
    world.publish(&[kept, second]).await;
    world.wait_entered(&[1]).await;
    world.publish(&serial(2..=2)).await;
    world.wait_entered(&[1, 2]).await;
    world.wait_settled().await;
    scene.link.cut(true);
    scene.boot.advance(Duration::from_secs(40));
    scene.wait_told(&[2]).await;
    world.gate.add_permits(1);
    let asked = || (!scene.asked.lock().expect("lock").is_empty()).then_some(());
    world.wait("what goes on to ask", asked).await;
    assert_eq!(*scene.asked.lock().expect("lock"), [(1, None)]);
    scene.link.cut(false);
    assert_eq!(world.outcome(1).await.kind, OutcomeKind::Succeeded);
    assert_eq!(world.outcome(2).await.kind, OutcomeKind::Lost);
    assert_eq!(world.outcome(3).await.kind, OutcomeKind::Returned);
    live.drain().await;
    assert_eq!(world.entered(), [1, 2]);
}

#[tokio::test]
async fn what_does_not_stop_is_dropped_before_the_failover_whatever_its_grace() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let live = run(scene.builder());
    let patient = with_job(trigger(1, "stubborn", Block::Serial), |job| {
        job.kill_grace = DurationMs::secs(3_600);
    });
    world.publish(&[patient]).await;
    world.wait_settled().await;
    scene.boot.advance(Duration::from_secs(28));
    let lost = world.outcome(1).await;
    assert_eq!(lost.kind, OutcomeKind::Lost);
    let text = lost.message.expect("a message");
    assert!(text.contains("did not stop within its grace"), "{text}");
    live.drain().await;
}

#[tokio::test]
async fn a_worker_without_contact_says_that_it_takes_nothing() {
    let scene = Scene::new().await;
    let mut beats = scene
        .world
        .broker
        .listen(&Channel::Heartbeats)
        .await
        .expect("listen");
    scene.link.lose_echoes(2);
    let live = run(scene.builder());
    let mut seen = Vec::new();
    while seen.last() != Some(&false) {
        let beat = timeout(Duration::from_secs(10), beats.recv()).await;
        let beat = beat.expect("a beat").expect("a channel");
        let beat: HeartbeatMessage = decode(&beat.payload).expect("readable");
        seen.push(beat.heartbeat.draining);
    }
    assert!(seen.len() >= 4, "{seen:?}");
    assert_eq!(seen.iter().filter(|draining| !**draining).count(), 1);
    live.drain().await;
}

#[tokio::test]
async fn a_worker_that_may_not_declare_its_queue_beats_until_somebody_has() {
    let scene = Scene::new().await;
    let mut beats = scene
        .world
        .broker
        .listen(&Channel::Heartbeats)
        .await
        .expect("listen");
    scene.link.forbid_declaring(true);
    let live = run(scene.builder());
    let refused = || (scene.link.refused.load(Ordering::SeqCst) >= 2).then_some(());
    scene.world.wait("tries to declare", refused).await;
    let beat = timeout(Duration::from_secs(10), beats.recv()).await;
    let beat = beat.expect("a beat").expect("a channel");
    let beat: HeartbeatMessage = decode(&beat.payload).expect("readable");
    assert!(beat.heartbeat.draining && !beat.heartbeat.gone);
    scene.link.forbid_declaring(false);
    let noop = trigger(1, "noop", Block::Serial);
    scene.world.publish(&[noop]).await;
    scene.world.outcome(1).await;
    live.drain().await;
}

#[tokio::test]
async fn limits_that_make_no_sense_are_refused() {
    let scene = Scene::new().await;
    let refusal = |builder: Builder| match builder.build() {
        Err(Error::Setting { field, problem, .. }) => (field, problem),
        other => panic!("{other:?}"),
    };
    let (field, problem) = refusal(
        scene
            .builder()
            .beat_every(Duration::from_secs(5))
            .fence_after(Duration::from_secs(10)),
    );
    assert_eq!(field, "fence_after");
    assert!(problem.contains("more than twice beat_every"), "{problem}");
    let (field, problem) = refusal(
        scene
            .builder()
            .fence_after(Duration::from_secs(20))
            .failover_after(Duration::from_secs(20)),
    );
    assert_eq!(field, "failover_after");
    assert!(problem.contains("more than fence_after"), "{problem}");
    let off = scene.builder().fence_after(Duration::ZERO);
    assert!(off.shares_fate_with_schedulers().build().is_ok());
}
