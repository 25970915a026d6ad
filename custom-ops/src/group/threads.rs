//! Ranks that are threads of one process: each lays its numbers down, and takes up those of all.
use super::call::Call;
use candle::Result;
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The place of a thread.
#[derive(Debug)]
pub(super) struct Seat {
    rank: usize,
    table: Arc<Table>,
    /// Calls that this rank made.
    made: Mutex<u64>,
}

#[derive(Debug)]
struct Table {
    world: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Calls that some rank has not taken its results of, by their number.
    rounds: HashMap<u64, Round>,
    /// Ranks that are gone, and calls that they had made.
    gone: HashMap<usize, u64>,
}

#[derive(Debug)]
struct Round {
    /// What each rank brought.
    brought: Vec<Option<(Call, Arc<dyn Any + Send + Sync>)>>,
    /// Ranks that took up what all brought.
    taken: usize,
}

pub(super) fn seats(world: usize) -> Vec<Seat> {
    let table = Arc::new(Table { world, state: Mutex::default(), changed: Condvar::new() });
    (0..world).map(|rank| Seat { rank, table: table.clone(), made: Mutex::new(0) }).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The state is valid at every point.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seat {
    /// Calls that this rank made.
    pub(super) fn made(&self) -> u64 {
        *lock(&self.made)
    }

    /// Brings numbers to a call and waits for those of all ranks, in the order of ranks.
    ///
    /// # Errors
    /// When another rank makes another call, or is gone before it made this one.
    pub(super) fn meet<T: Send + Sync + 'static>(
        &self,
        call: Call,
        mine: Vec<T>,
    ) -> Result<Vec<Arc<Vec<T>>>> {
        // One thread of a rank at a time, from its first step to its last.
        let mut made = lock(&self.made);
        let at = *made;
        let (table, op) = (&self.table, call.op);
        let mut state = lock(&table.state);
        let round =
            state.rounds.entry(at).or_insert_with(|| Round { brought: vec![None; table.world], taken: 0 });
        if let Some(place) = round.brought.get_mut(self.rank) {
            *place = Some((call, Arc::new(mine)));
        }
        *made += 1;
        table.changed.notify_all();
        loop {
            let Some(round) = state.rounds.get_mut(&at) else {
                candle::bail!("{op}: the ranks made different calls before this one")
            };
            for (rank, (other, _)) in
                round.brought.iter().enumerate().filter_map(|(r, b)| Some((r, b.as_ref()?)))
            {
                call.expect_same(self.rank, other, rank)?;
            }
            if round.brought.iter().all(Option::is_some) {
                let brought = round.brought.iter().flatten();
                let all =
                    brought.map(|(_, numbers)| numbers.clone().downcast().ok()).collect::<Option<Vec<_>>>();
                round.taken += 1;
                if round.taken == table.world {
                    state.rounds.remove(&at);
                }
                let Some(all) = all else { candle::bail!("{op}: the ranks brought different types") };
                return Ok(all);
            }
            let missing = state.gone.iter().find(|(_, calls)| **calls <= at);
            if let Some((rank, _)) = missing {
                candle::bail!("{op}: rank {rank} of {} is gone", table.world)
            }
            state = table.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let made = *lock(&self.made);
        lock(&self.table.state).gone.insert(self.rank, made);
        self.table.changed.notify_all();
    }
}
