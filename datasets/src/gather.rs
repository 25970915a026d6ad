//! A thread that reads rows ahead of their use.
use crate::source::row_bytes;
use crate::{Error, Result, Source};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Gathers chunks of rows into host memory, in the order they were asked for.
#[derive(Debug)]
pub(crate) struct Gatherer {
    asks: Option<Sender<Ask>>,
    answers: Receiver<Result<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
    /// Chunks asked for and not received.
    outstanding: usize,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Ask {
    rows: Vec<u32>,
    /// Rows that lie together and are needed in later chunks.
    soon: Vec<Range<usize>>,
    buffer: Vec<u8>,
}

impl Gatherer {
    /// Starts the thread, which ends when the `Gatherer` is dropped.
    pub(crate) fn spawn(rows: Arc<dyn Source>) -> Result<Self> {
        let (asks, incoming) = channel::<Ask>();
        let (outgoing, answers) = channel();
        let thread = std::thread::Builder::new()
            .name("chandlery-gather".to_owned())
            .spawn(move || {
                let row_bytes = row_bytes(rows.as_ref());
                for mut ask in incoming {
                    ask.buffer.resize(ask.rows.len() * row_bytes, 0);
                    ask.soon.into_iter().for_each(|some| rows.will_read(some));
                    let read = rows.read_rows(&ask.rows, &mut ask.buffer);
                    if outgoing.send(read.map(|()| ask.buffer)).is_err() {
                        return;
                    }
                }
            })
            .map_err(|e| Error::Argument(format!("Feed: cannot start the reading thread: {e}")))?;
        Ok(Self { asks: Some(asks), answers, thread: Some(thread), outstanding: 0, spare: Vec::new() })
    }

    /// Asks for rows, and says which are needed soon after them; returns at once.
    pub(crate) fn ask(&mut self, rows: Vec<u32>, soon: Vec<Range<usize>>) -> Result<()> {
        let buffer = self.spare.pop().unwrap_or_default();
        let ask = Ask { rows, soon, buffer };
        match self.asks.as_ref().map(|asks| asks.send(ask)) {
            Some(Ok(())) => {
                self.outstanding += 1;
                Ok(())
            }
            _ => Err(gone()),
        }
    }

    /// Waits for the oldest chunk asked for.
    pub(crate) fn receive(&mut self) -> Result<Vec<u8>> {
        let bytes = self.answers.recv().map_err(|_| gone())?;
        self.outstanding -= 1;
        bytes
    }

    /// Hands a buffer back for a later chunk.
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    /// Waits for what is outstanding and drops it, errors of reading included.
    pub(crate) fn discard(&mut self) -> Result<()> {
        while self.outstanding > 0 {
            let answer = self.answers.recv().map_err(|_| gone())?;
            self.outstanding -= 1;
            self.spare.extend(answer.ok());
        }
        Ok(())
    }
}

fn gone() -> Error {
    Error::Argument("Feed: the reading thread ended early; its source panicked".to_owned())
}

impl Drop for Gatherer {
    fn drop(&mut self) {
        drop(self.asks.take());
        // Nobody waits for an answer: the thread ends after the chunk that it reads now.
        self.answers = channel().1;
        if let Some(thread) = self.thread.take() {
            // A panic of the source was reported by `receive`; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}
