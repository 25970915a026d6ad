//! Where the wall time of the process goes: a clock of stages, of which one runs at every moment.
//!
//! Time counts to the innermost stage that the main thread has entered by [`enter`]; what other
//! threads do meanwhile does not matter. Outside of all of them it counts to [`Stage::Start`] until
//! the first is entered, and then to [`Stage::Measures`], unless [`from_here_on`] names another, as
//! a training command does. A GPU works on after it was told to: who waits for it pays.
//!
//! So the stages add up to the time since [`begin`], and a program that enters none has them too.
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{ThreadId, current};
use std::time::{Duration, Instant};

/// What a program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// It reads its command line, opens the device and loads a saved model.
    Start,
    /// It opens a data set, holds rows out, and copies rows to the device where they stay there.
    Data,
    /// It fits what is done to rows, and makes the model that is to learn.
    Preparation,
    /// The model learns.
    Training,
    /// It writes or reads a checkpoint.
    Checkpoints,
    /// It measures, between epochs and at the end.
    Measures,
    /// It draws.
    Pictures,
    /// It writes the other files of a run.
    Files,
}

/// The field of `results.json` and of `--json`.
pub const FIELD: &str = "stage_seconds";

/// Seconds of each stage; all of them are there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seconds(BTreeMap<Stage, f64>);

impl Seconds {
    /// Those of a stage.
    pub fn of(&self, stage: Stage) -> f64 {
        self.0.get(&stage).copied().unwrap_or(0.)
    }

    /// Those of all.
    pub fn total(&self) -> f64 {
        self.0.values().sum()
    }

    /// Each with its own.
    pub fn all(&self) -> Vec<(Stage, f64)> {
        self.0.iter().map(|(&stage, &seconds)| (stage, seconds)).collect()
    }
}

impl FromIterator<(Stage, f64)> for Seconds {
    fn from_iter<T: IntoIterator<Item = (Stage, f64)>>(spent: T) -> Self {
        let none = Stage::value_variants().iter().map(|&stage| (stage, 0.));
        Self(none.chain(spent).collect())
    }
}

struct Clock {
    main: ThreadId,
    /// The stage outside of those that were entered.
    outer: Stage,
    /// Those that were entered and not left yet, the innermost last.
    entered: Vec<Stage>,
    /// When the stage under way went on.
    since: Instant,
    spent: BTreeMap<Stage, Duration>,
}

impl Clock {
    fn at(now: Instant) -> Self {
        let spent = BTreeMap::new();
        Self { main: current().id(), outer: Stage::Start, entered: Vec::new(), since: now, spent }
    }

    /// Counts the time until now to the stage under way.
    fn count(&mut self, now: Instant) {
        let stage = self.entered.last().unwrap_or(&self.outer);
        *self.spent.entry(*stage).or_default() += now - self.since;
        self.since = now;
    }

    fn enter(&mut self, stage: Stage, now: Instant) -> usize {
        self.count(now);
        if self.outer == Stage::Start {
            self.outer = Stage::Measures;
        }
        self.entered.push(stage);
        self.entered.len() - 1
    }

    /// Leaves the stage that was entered within so many, with all that were entered within it.
    fn leave(&mut self, within: usize, now: Instant) {
        self.count(now);
        self.entered.truncate(within);
    }

    fn outside(&mut self, stage: Stage, now: Instant) {
        self.count(now);
        self.outer = stage;
    }

    fn seconds(&mut self, now: Instant) -> Seconds {
        self.count(now);
        self.spent.iter().map(|(&stage, spent)| (stage, spent.as_secs_f64())).collect()
    }
}

/// There is one for a process.
static CLOCK: Mutex<Option<Clock>> = Mutex::new(None);

/// What `f` makes of the clock now; none on other threads than the main one, or where there is no
/// clock.
fn on_main<T>(f: impl FnOnce(&mut Clock, Instant) -> T) -> Option<T> {
    let mut clock = clock();
    clock.as_mut().filter(|clock| clock.main == current().id()).map(|clock| f(clock, Instant::now()))
}

fn clock() -> MutexGuard<'static, Option<Clock>> {
    // Nothing panics while it has the lock.
    CLOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the clock, on the main thread.
pub fn begin() {
    *clock() = Some(Clock::at(Instant::now()));
}

/// Until this is dropped, time counts to a stage.
#[derive(Debug)]
#[must_use]
pub struct Entered {
    within: Option<usize>,
    /// It is dropped on the thread that entered.
    here: PhantomData<*const ()>,
}

/// Enters a stage. On other threads than the main one this does nothing.
pub fn enter(stage: Stage) -> Entered {
    Entered { within: on_main(|clock, now| clock.enter(stage, now)), here: PhantomData }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(within) = self.within {
            on_main(|clock, now| clock.leave(within, now));
        }
    }
}

/// From here on, time outside of the stages that are entered counts to this one.
pub fn from_here_on(stage: Stage) {
    on_main(|clock, now| clock.outside(stage, now));
}

/// What was spent so far. All are 0 where there is no clock: outside of programs.
pub fn seconds() -> Seconds {
    let (mut clock, now) = (clock(), Instant::now());
    clock.as_mut().map_or_else(|| Clock::at(now).seconds(now), |clock| clock.seconds(now))
}

/// An object with what was spent so far, unless it has that already; another value as it is.
pub fn with_seconds(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.entry(FIELD).or_insert_with(|| json!(seconds()));
    }
    value
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::choices::name_of;

    #[test]
    fn time_counts_to_the_innermost_stage_and_all_of_it_counts() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut clock = Clock::at(began);
        let data = clock.enter(Stage::Data, at(1));
        let files = clock.enter(Stage::Files, at(3));
        clock.leave(files, at(6));
        clock.leave(data, at(10));
        // The start is over, and no stage is under way for 5 s.
        clock.outside(Stage::Training, at(15));
        let checkpoints = clock.enter(Stage::Checkpoints, at(21));
        let preparation = clock.enter(Stage::Preparation, at(28));
        // The outer one ends first, and the inner one with it.
        clock.leave(checkpoints, at(36));
        clock.leave(preparation, at(45));
        let made = clock.seconds(at(55));
        let want = [1., 2. + 4., 8., 6. + 9. + 10., 7., 5., 0., 3.];
        assert_eq!(Stage::value_variants().iter().map(|&stage| made.of(stage)).collect::<Vec<_>>(), want);
        assert_eq!((made.total(), clock.seconds(at(60)).total()), (55., 60.));
    }

    #[test]
    fn an_object_has_all_eight_names_once() {
        let value = with_seconds(json!({"a": 1}));
        let names: Vec<&String> = value[FIELD].as_object().unwrap().keys().collect();
        let mut want: Vec<String> = Stage::value_variants().iter().map(name_of).collect();
        want.sort();
        assert!(names.len() == 8 && names == want.iter().collect::<Vec<_>>(), "{names:?}");
        assert_eq!(with_seconds(value.clone()), value);
        assert_eq!(json!(serde_json::from_value::<Seconds>(value[FIELD].clone()).unwrap()), value[FIELD]);
        assert_eq!(with_seconds(json!([1])), json!([1]));
    }

    #[test]
    fn threads_beside_the_main_one_change_nothing() {
        begin();
        let _data = enter(Stage::Data);
        let other = || {
            let _other = enter(Stage::Pictures);
            from_here_on(Stage::Pictures);
            seconds()
        };
        for made in [std::thread::spawn(other).join().unwrap(), seconds()] {
            assert!(made.of(Stage::Pictures) == 0. && made.of(Stage::Data) > 0., "{made:?}");
        }
    }
}
