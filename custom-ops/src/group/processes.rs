//! Ranks that are processes, on one host or several: each has a connection to rank 0 over TCP.
//!
//! It carries small texts (are all settings the same, where do we stop) and, on the CPU, the numbers
//! of the collectives; those of GPUs go by NCCL. Each side says once a second that it is alive. A
//! process that ends, fails, or says nothing for [`SILENCE`] ends the waits of all others with an error
//! that names it.
//!
//! The port is open to whoever reaches the host, as those of other launchers are: use it within a
//! network that you trust.
use super::environment::Place;
use super::frames::{Frame, Kind, Link};
pub use super::shared::{OnLoss, SILENCE, Wish};
use super::shared::{Shared, State};
use candle::Result;
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// The processes that compute together, as one of them sees them.
///
/// Dropping it says that this one is done.
#[derive(Debug)]
pub struct Processes {
    shared: Arc<Shared>,
}

impl Processes {
    /// Of connections that were made; `links` are in the order of ranks.
    pub(super) fn start(
        place: &Place,
        hosts: Vec<String>,
        links: Vec<(usize, TcpStream)>,
        on_loss: OnLoss,
    ) -> std::io::Result<Self> {
        let mut readers = Vec::new();
        let mut made = Vec::new();
        for (peer, stream) in links {
            readers.push(stream.try_clone()?);
            made.push(Link::new(peer, stream)?);
        }
        let shared = Arc::new(Shared {
            rank: place.rank,
            links: made,
            state: Mutex::new(State { left: vec![false; hosts.len()], ..State::default() }),
            hosts,
            changed: Condvar::new(),
            exchanging: Mutex::new(0),
            telling: Mutex::default(),
            on_loss,
        });
        for (i, reader) in readers.into_iter().enumerate() {
            let shared = shared.clone();
            thread::Builder::new().name("rank".to_owned()).spawn(move || shared.listen(i, reader))?;
        }
        let beating = shared.clone();
        thread::Builder::new().name("beat".to_owned()).spawn(move || beating.beat())?;
        Ok(Self { shared })
    }

    /// Which of the processes this is, from 0.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// How many there are.
    pub fn world(&self) -> usize {
        self.shared.hosts.len()
    }

    /// What each rank brings, in the order of ranks, on every rank. All ranks must call it in the same
    /// order.
    ///
    /// # Errors
    /// When a rank is gone, or has left before it brought something.
    pub fn exchange(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let shared = &self.shared;
        let mut number = shared.exchanging.lock().unwrap_or_else(PoisonError::into_inner);
        let at = *number;
        *number += 1;
        if shared.rank != 0 {
            shared.to(0, &Frame::new(Kind::Brought, at, mine));
            return shared.wait(|state| {
                let has_left = state.left.first() == Some(&true);
                let all = state.results.remove(&at).map(Ok);
                all.or_else(|| has_left.then(|| Err("rank 0 has left".to_owned())))
            });
        }
        shared.bring(0, at, mine);
        let all = shared.wait(|state| {
            let brought = state.brought.get(&at)?;
            if brought.iter().all(Option::is_some) {
                let all = state.brought.remove(&at).unwrap_or_default();
                return Some(Ok(all.into_iter().flatten().collect::<Vec<_>>()));
            }
            let left = brought.iter().zip(&state.left).position(|(of, &left)| of.is_none() && left)?;
            Some(Err(format!("rank {left} of {} has left", brought.len())))
        })?;
        let sizes: Vec<u8> = all.iter().flat_map(|of| (of.len() as u64).to_le_bytes()).collect();
        let frame = Frame::new(Kind::Result, at, [sizes, all.concat()].concat());
        shared.links.iter().for_each(|link| shared.send(link, &frame));
        Ok(all)
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    pub fn wait(&self) -> Result<()> {
        self.exchange(Vec::new()).map(drop)
    }

    /// Refuses ranks that differ: `mine` is a text of lines `name: value` that must be the same on all.
    ///
    /// # Errors
    /// When a rank has another line, which is named with both values; and as
    /// [`exchange`](Self::exchange).
    pub fn agree(&self, mine: &str) -> Result<()> {
        let all = self.exchange(mine.as_bytes().to_vec())?;
        let texts: Vec<_> = all.iter().map(|text| String::from_utf8_lossy(text)).collect();
        let Some((first, others)) = texts.split_first() else { return Ok(()) };
        for (rank, other) in others.iter().enumerate().map(|(i, text)| (i + 1, text)) {
            if first == other {
                continue;
            }
            let differing = first.lines().zip(other.lines()).find(|(a, b)| a != b);
            let (of_first, of_other) = differing.unwrap_or(("more", "less"));
            candle::bail!(
                "all ranks must be asked for the same; rank 0 has {of_first}, and rank {rank} of {} on {} {of_other}",
                self.world(),
                self.shared.host(rank)
            )
        }
        Ok(())
    }

    /// Has all ranks do this at a later turn, the same on all. What was wished before and is not done
    /// yet is not asked for again.
    pub fn ask(&self, wish: Wish) {
        self.shared.ask(wish);
    }

    /// Takes a turn: what all ranks do now, between two steps of theirs. All take the same turns.
    ///
    /// # Errors
    /// When a rank is gone.
    pub fn turn(&self) -> Result<Wish> {
        let (wish, later) = self.shared.wait(|state| {
            if state.gate.is_some_and(|gate| state.turns >= gate) {
                return None;
            }
            state.turns += 1;
            match state.due.front() {
                Some(&(at, wish)) if at == state.turns => {
                    state.due.pop_front();
                    Some(Ok((wish, std::mem::take(&mut state.wished))))
                }
                _ => Some(Ok(<(Wish, Wish)>::default())),
            }
        })?;
        // On other ranks what they wished has been done.
        if self.shared.rank == 0 && !wish.stop && !later.is_none() {
            self.shared.ask_turns(later);
        }
        Ok(wish)
    }

    /// Waits until rank 0 is done.
    ///
    /// # Errors
    /// When it fails, or a rank is gone.
    pub fn wait_for_first(&self) -> Result<()> {
        self.shared.wait(|state| state.left.first().and_then(|&left| left.then_some(Ok(()))))
    }

    /// Whether a rank is gone: what was to be called then is, or will be soon.
    pub fn is_lost(&self) -> bool {
        self.shared.state().lost.is_some()
    }

    /// How many processes are on this host.
    pub fn on_this_host(&self) -> usize {
        let own = self.shared.host(self.rank());
        self.shared.hosts.iter().filter(|host| *host == own).count()
    }

    /// Says to the others that this rank is done, as dropping it does.
    pub fn leave(&self) {
        self.shared.end(Frame::new(Kind::Left, 0, Vec::new()));
    }

    /// Says to the others that this rank has failed, and why.
    pub fn fail(&self, why: &str) {
        self.shared.end(Frame::new(Kind::Failed, 0, why.as_bytes().to_vec()));
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.leave();
    }
}
