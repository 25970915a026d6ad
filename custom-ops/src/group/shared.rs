//! What the threads of one process do for its group: one listens to each other rank, one says that
//! this one is alive, and the others wait for what these hear.
use super::frames::{Frame, Kind, Link};
use candle::Result;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::TcpStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// After so long without a word a process counts as gone.
pub const SILENCE: Duration = Duration::from_secs(10);
/// What the ranks are to do together at one of their [turns](super::Processes::turn).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// Write a checkpoint.
    pub save: bool,
    /// Stop, with a checkpoint.
    pub stop: bool,
}

impl Wish {
    /// Whether there is nothing to do.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    fn and(self, other: Self) -> Self {
        Self { save: self.save | other.save, stop: self.stop | other.stop }
    }

    fn byte(self) -> u8 {
        u8::from(self.save) | u8::from(self.stop) << 1
    }

    fn of(bytes: &[u8]) -> Self {
        let bits = bytes.first().copied().unwrap_or(0);
        Self { save: bits & 1 != 0, stop: bits & 2 != 0 }
    }
}

/// What is called when a rank is gone, with a text that names it.
pub type OnLoss = Box<dyn Fn(&str) + Send + Sync>;

/// How often each says that it is alive.
const BEAT: Duration = Duration::from_secs(1);

/// What the threads of a process share.
pub(super) struct Shared {
    pub rank: usize,
    /// The host of each rank.
    pub hosts: Vec<String>,
    /// To all other ranks on rank 0, and to rank 0 on the others.
    pub links: Vec<Link>,
    pub state: Mutex<State>,
    pub changed: Condvar,
    /// One exchange of this rank at a time, from its first step to its last.
    pub exchanging: Mutex<u64>,
    /// On rank 0: held from what it decides about turns until all were told, so that others hear
    /// of it in the order in which it was decided.
    pub telling: Mutex<()>,
    pub on_loss: OnLoss,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("rank", &self.rank).field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Why a rank is gone.
    pub lost: Option<String>,
    /// Ranks that said that they are done.
    pub left: Vec<bool>,
    /// This rank is done.
    pub is_over: bool,
    /// On rank 0: what each rank brought to an exchange.
    pub brought: HashMap<u64, Vec<Option<Vec<u8>>>>,
    /// On other ranks: what all brought.
    pub results: HashMap<u64, Vec<Vec<u8>>>,
    /// Turns that this rank has taken.
    pub turns: u64,
    /// No turn after this one before the ranks have agreed.
    pub gate: Option<u64>,
    /// What is done at which turn, the next one first.
    pub due: VecDeque<(u64, Wish)>,
    /// On rank 0: the turns of all ranks, while these are asked for.
    pub asking: Option<(Wish, Vec<Option<u64>>)>,
    /// On rank 0: what is asked for once that is done. On others: what this one has wished and all have
    /// not done yet.
    pub wished: Wish,
}

impl Shared {
    pub fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid at every point.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn host(&self, rank: usize) -> &str {
        self.hosts.get(rank).map_or("", String::as_str)
    }

    /// Waits until `ready` has something, or says why it never will.
    pub fn wait<T>(
        &self,
        mut ready: impl FnMut(&mut State) -> Option<std::result::Result<T, String>>,
    ) -> Result<T> {
        let mut state = self.state();
        loop {
            let made = ready(&mut state).or_else(|| state.lost.clone().map(Err));
            if let Some(made) = made {
                return made.map_err(candle::Error::Msg);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn to(&self, peer: usize, frame: &Frame) {
        self.links.iter().filter(|link| link.peer == peer).for_each(|link| self.send(link, frame));
    }

    pub fn send(&self, link: &Link, frame: &Frame) {
        if let Err(err) = link.send(frame) {
            self.is_gone(link.peer, &format!("is gone: {err}"));
        }
    }

    pub fn bring(&self, rank: usize, at: u64, bytes: Vec<u8>) {
        let mut state = self.state();
        let world = self.hosts.len();
        let brought = state.brought.entry(at).or_insert_with(|| vec![None; world]);
        if let Some(place) = brought.get_mut(rank) {
            *place = Some(bytes);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A rank is gone; nothing where that was known, it had left, or this one is done.
    fn is_gone(&self, peer: usize, what: &str) {
        let has_left = self.state().left.get(peer).copied().unwrap_or(false);
        if !has_left {
            let world = self.hosts.len();
            self.lose(format!("rank {peer} of {world} on {} {what}", self.host(peer)), peer);
        }
    }

    fn lose(&self, text: String, peer: usize) {
        {
            let mut state = self.state();
            if state.is_over || state.lost.is_some() {
                return;
            }
            state.lost = Some(text.clone());
        }
        self.changed.notify_all();
        if self.rank == 0 {
            let gone = Frame::new(Kind::Gone, 0, text.as_bytes().to_vec());
            let others = self.links.iter().filter(|link| link.peer != peer);
            // One that cannot be told finds out by itself.
            others.for_each(|link| drop(link.send(&gone)));
        }
        (self.on_loss)(&text);
    }

    pub fn end(&self, last: Frame) {
        {
            let mut state = self.state();
            if std::mem::replace(&mut state.is_over, true) || state.lost.is_some() {
                return;
            }
        }
        self.changed.notify_all();
        self.links.iter().for_each(|link| link.end(&last));
    }

    pub fn ask(&self, wish: Wish) {
        if self.rank == 0 {
            return self.ask_turns(wish);
        }
        let mut state = self.state();
        let wished = state.wished.and(wish);
        if std::mem::replace(&mut state.wished, wished) != wished {
            drop(state);
            self.to(0, &Frame::new(Kind::Wished, 0, vec![wished.byte()]));
        }
    }

    /// On rank 0: asks all ranks how many turns they have taken, and holds them there, so that they
    /// can agree on the turn after the furthest of them.
    pub fn ask_turns(&self, wish: Wish) {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        if let Some((asked, _)) = &mut state.asking {
            *asked = asked.and(wish);
            return;
        }
        if let Some(&(_, due)) = state.due.front() {
            // They have agreed on something else, which other ranks may have done already.
            if due.and(wish) != due {
                state.wished = state.wished.and(wish);
            }
            return;
        }
        let turns = state.turns;
        state.gate = Some(turns);
        let mut all = vec![None; self.hosts.len()];
        if let Some(own) = all.first_mut() {
            *own = Some(turns);
        }
        state.asking = Some((wish, all));
        drop(state);
        let frame = Frame::new(Kind::Hold, 0, Vec::new());
        self.links.iter().for_each(|link| self.send(link, &frame));
    }

    /// On rank 0: a rank has taken so many turns. When all have said so, they agree.
    fn held(&self, rank: usize, turns: u64) {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        let Some((wish, all)) = &mut state.asking else { return };
        if let Some(place) = all.get_mut(rank) {
            *place = Some(turns);
        }
        let Some(furthest) =
            all.iter().copied().collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max())
        else {
            return;
        };
        let (wish, at) = (*wish, furthest + 1);
        (state.asking, state.gate) = (None, None);
        state.due.push_back((at, wish));
        drop(state);
        self.changed.notify_all();
        let frame = Frame::new(Kind::At, at, vec![wish.byte()]);
        self.links.iter().for_each(|link| self.send(link, &frame));
    }

    /// Takes what a rank says until its connection ends.
    pub fn listen(&self, link: usize, mut stream: TcpStream) {
        let Some(link) = self.links.get(link) else { return };
        let peer = link.peer;
        loop {
            let frame = match link.read(&mut stream) {
                Ok(frame) => frame,
                Err(_) => return self.is_gone(peer, "is gone: its connection ended"),
            };
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            match frame.kind {
                Kind::Beat => {}
                Kind::Brought => self.bring(peer, frame.number, frame.bytes),
                Kind::Result => {
                    let all = parts(&frame.bytes, self.hosts.len());
                    self.state().results.insert(frame.number, all);
                    self.changed.notify_all();
                }
                Kind::Wished => self.ask_turns(Wish::of(&frame.bytes)),
                Kind::Hold => {
                    let turns = {
                        let mut state = self.state();
                        // What they have agreed on before is done first, also where rank 0 has.
                        let due = state.due.back().map_or(0, |(at, _)| *at);
                        let turns = state.turns.max(due);
                        state.gate = Some(turns);
                        turns
                    };
                    self.send(link, &Frame::new(Kind::Held, turns, Vec::new()));
                }
                Kind::Held => self.held(peer, frame.number),
                Kind::At => {
                    let mut state = self.state();
                    state.gate = None;
                    state.due.push_back((frame.number, Wish::of(&frame.bytes)));
                    drop(state);
                    self.changed.notify_all();
                }
                Kind::Gone => return self.lose(text(&frame.bytes), peer),
                Kind::Failed => {
                    return self.is_gone(peer, &format!("failed: {}", text(&frame.bytes)));
                }
                Kind::Left => {
                    if let Some(left) = self.state().left.get_mut(peer) {
                        *left = true;
                    }
                    self.changed.notify_all();
                }
                Kind::Hello | Kind::Heard | Kind::Welcome | Kind::Refused => {}
            }
        }
    }

    /// Says once a second that this rank is alive, and looks whether the others are.
    pub fn beat(&self) {
        let beat = Frame::new(Kind::Beat, 0, Vec::new());
        loop {
            thread::sleep(BEAT);
            let left = {
                let state = self.state();
                if state.is_over || state.lost.is_some() {
                    return;
                }
                state.left.clone()
            };
            for link in self.links.iter().filter(|link| left.get(link.peer) != Some(&true)) {
                if let Err(err) = link.beat(&beat) {
                    self.is_gone(link.peer, &format!("is gone: {err}"));
                } else if link.silence() > SILENCE {
                    let what = format!("has said nothing for {} s", SILENCE.as_secs());
                    self.is_gone(link.peer, &what);
                }
            }
        }
    }
}

/// What each of `world` ranks brought, of the sizes and then the bytes of all.
fn parts(bytes: &[u8], world: usize) -> Vec<Vec<u8>> {
    let (sizes, mut rest) = bytes.split_at_checked(8 * world).unwrap_or_default();
    let size = |of: &[u8]| of.try_into().map_or(0, u64::from_le_bytes) as usize;
    let part = |of: &[u8]| {
        let (part, behind) = rest.split_at_checked(size(of)).unwrap_or_default();
        rest = behind;
        part.to_vec()
    };
    sizes.chunks_exact(8).map(part).collect()
}
