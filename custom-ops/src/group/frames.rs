//! What ranks write to each other over TCP: a kind, a number, and bytes.
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a rank may not take up what is written to it.
const WRITE: Duration = Duration::from_secs(5);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// What a frame says.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Kind {
            $($(#[$doc])* $name,)+
        }

        impl Kind {
            const ALL: &[Self] = &[$(Self::$name,)+];
        }
    };
}
kinds! {
    /// A process comes to rank 0 and says who it is.
    Hello,
    /// Rank 0 has heard that.
    Heard,
    /// All have come: the hosts of all ranks.
    Welcome,
    /// Rank 0 does not take it, and why.
    Refused,
    /// I am alive.
    Beat,
    /// What a rank brings to the exchange of this number.
    Brought,
    /// What all brought to it.
    Result,
    /// A rank wants all to do something.
    Wished,
    /// How many turns have you taken? Take no more.
    Hold,
    /// So many.
    Held,
    /// All do this at the turn of this number.
    At,
    /// A rank is gone.
    Gone,
    /// This rank has failed.
    Failed,
    /// This rank is done.
    Left,
}

/// One word of a rank to another.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub kind: Kind,
    pub number: u64,
    pub bytes: Vec<u8>,
}

impl Frame {
    pub fn new(kind: Kind, number: u64, bytes: Vec<u8>) -> Self {
        Self { kind, number, bytes }
    }

    pub fn write(&self, mut to: impl Write) -> Result<()> {
        let [number, size] = [self.number, self.bytes.len() as u64].map(u64::to_le_bytes);
        to.write_all(&[&[self.kind as u8], &number[..], &size].concat())?;
        to.write_all(&self.bytes)
    }

    /// Reads one of at most `most` bytes.
    pub fn read(mut from: impl Read, most: u64) -> Result<Self> {
        let (mut kind, mut number, mut size) = ([0], [0; 8], [0; 8]);
        from.read_exact(&mut kind)?;
        from.read_exact(&mut number)?;
        from.read_exact(&mut size)?;
        let kind = Kind::ALL.iter().find(|of| **of as u8 == kind[0]);
        let (Some(&kind), size) = (kind, u64::from_le_bytes(size)) else {
            return Err(Error::new(ErrorKind::InvalidData, "not a rank of Chandlery"));
        };
        if size > most {
            return Err(Error::new(ErrorKind::InvalidData, "not a rank of Chandlery"));
        }
        // Memory is taken as bytes come.
        let mut bytes = Vec::new();
        from.take(size).read_to_end(&mut bytes)?;
        if (bytes.len() as u64) < size {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(Self::new(kind, u64::from_le_bytes(number), bytes))
    }
}

/// The connection to another rank.
#[derive(Debug)]
pub(super) struct Link {
    pub peer: usize,
    to: Mutex<TcpStream>,
    began: Instant,
    /// When it last said something, in milliseconds since then.
    heard: AtomicU64,
}

impl Link {
    pub fn new(peer: usize, stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(WRITE))?;
        Ok(Self { peer, to: Mutex::new(stream), began: Instant::now(), heard: AtomicU64::new(0) })
    }

    pub fn send(&self, frame: &Frame) -> Result<()> {
        // After a panic in the middle of a frame the other side finds that out.
        frame.write(&mut *self.to.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends a sign of life, unless something else is under way, which is one.
    pub fn beat(&self, frame: &Frame) -> Result<()> {
        match self.to.try_lock() {
            Ok(mut to) => frame.write(&mut *to),
            Err(TryLockError::WouldBlock) => Ok(()),
            Err(TryLockError::Poisoned(to)) => frame.write(&mut *to.into_inner()),
        }
    }

    /// Sends the last word. Whether it comes does not matter.
    pub fn end(&self, frame: &Frame) {
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = frame.write(&mut *to);
        let _ = to.shutdown(Shutdown::Write);
    }

    pub fn read(&self, stream: &mut TcpStream) -> Result<Frame> {
        Frame::read(Heard { link: self, stream }, u64::MAX)
    }

    /// How long the other rank has said nothing.
    pub fn silence(&self) -> Duration {
        let heard = Duration::from_millis(self.heard.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(heard)
    }
}

/// Bytes that come are a sign of life, also in the middle of a long frame.
struct Heard<'a> {
    link: &'a Link,
    stream: &'a mut TcpStream,
}

impl Read for Heard<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let n = self.stream.read(bytes)?;
        self.link.heard.store(self.link.began.elapsed().as_millis() as u64, Ordering::Relaxed);
        Ok(n)
    }
}
