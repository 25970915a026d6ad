//! Damaged files by the thousand: a seeded generator, and a campaign that opens what it makes.
//!
//! A test calls [`campaign`] with whole files and a function that opens one. Mutant `i` is a
//! function of the seed and of `i` alone. Mutants are opened in other processes, so that an abort,
//! an endless loop or an exhausted stack is a failure like any other and the next mutant follows.
//! The test fails with the list of what went wrong:
//!
//! - a panic, an abort, a signal;
//! - an error of more than one line, or one that does not name the folder of the file;
//! - more than [`MOST_SECONDS`];
//! - where the test binary has the allocator of `gauge.rs`: an allocation of more than 64 MiB and
//!   64 times the file, or more than 256 MiB and 2048 times the file held at once.
//!
//! | variable                 | what                                                                                |
//! |--------------------------|-------------------------------------------------------------------------------------|
//! | `CHANDLERY_MUTANTS`      | how many mutants; the default is the test's                                         |
//! | `CHANDLERY_MUTANTS_SEED` | seed of the generator; default 1                                                    |
//! | `CHANDLERY_MUTANT`       | a number: that mutant alone, in this process; its file is kept and its path printed |
#![allow(dead_code)] // Each test file uses some of it.
#![allow(clippy::expect_used)] // A test that cannot write its files has failed.
use super::gauge::Gauge;
use chandlery_ops::Philox;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Far above the milliseconds that a whole file takes, so that only what does not end soon is above
/// it, on a busy machine too.
pub const MOST_SECONDS: u64 = 5;

/// Processes that open mutants at a time.
const WORKERS: u64 = 2;

/// A whole file.
pub struct Whole {
    /// Its path within a folder of its own.
    pub path: String,
    /// What is mutated.
    pub bytes: Vec<u8>,
    /// Makes the file of the mutated bytes: a checksum made right, a compression.
    pub wrap: fn(&[u8]) -> Vec<u8>,
    /// Other files of the folder.
    pub beside: Vec<(String, Vec<u8>)>,
    /// What is to be opened, within the folder.
    pub spec: String,
}

impl Whole {
    /// A file that is opened by its own path.
    pub fn new(path: &str, bytes: Vec<u8>) -> Self {
        Self { path: path.to_owned(), bytes, wrap: <[u8]>::to_vec, beside: vec![], spec: path.to_owned() }
    }

    /// The same with `wrap`.
    pub fn wrapped(self, wrap: fn(&[u8]) -> Vec<u8>) -> Self {
        Self { wrap, ..self }
    }

    /// The same with another file beside it.
    pub fn with(mut self, path: &str, bytes: Vec<u8>) -> Self {
        self.beside.push((path.to_owned(), bytes));
        self
    }

    /// The same, opened by another path; empty for the folder.
    pub fn opened_by(self, spec: &str) -> Self {
        Self { spec: spec.to_owned(), ..self }
    }
}

/// Seeded draws, one after the other.
pub struct Draws {
    philox: Philox,
    next: u64,
}

impl Draws {
    pub fn new(seed: u64, stream: u64) -> Self {
        Self { philox: Philox::new(seed, stream), next: 0 }
    }

    pub fn bits(&mut self) -> u32 {
        self.next += 1;
        self.philox.bits(self.next - 1)
    }

    /// Below `n`, which may be 0 for 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { self.bits() as usize % n }
    }

    pub fn one_of<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    /// A place in `n` bytes; every second time near the beginning or the end, where headers and
    /// footers lie.
    fn place(&mut self, n: usize) -> usize {
        let near = n.min(128);
        match self.below(4) {
            0 => self.below(near),
            1 => n.saturating_sub(1 + self.below(near)),
            _ => self.below(n),
        }
    }

    /// A stretch of `n` bytes, mostly a short one.
    fn stretch(&mut self, n: usize) -> std::ops::Range<usize> {
        let start = self.place(n);
        let most = if self.below(2) == 0 { 16 } else { n };
        start..(start + 1 + self.below(most)).min(n)
    }
}

/// Numbers that sizes overflow by.
const SIZES: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x10_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];
/// The same as text, and others that are no sizes.
const NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "1",
    "255",
    "65535",
    "1000000",
    "1000000000",
    "4294967295",
    "18446744073709551615",
    "99999999999999999999999",
    "1e999",
    "nan",
];
/// What texts are made of.
const MARKS: [&str; 16] =
    ["(", ")", "[", "]", "{", "}", "'", "\"", ",", ":", "\n", ";", "-", "\u{e9}", "\0", "\\"];

/// Damages `bytes` in one to four ways; `other` is another file, parts of which may get in. Says
/// what was done.
pub fn mutate(bytes: &[u8], other: &[u8], draws: &mut Draws) -> (Vec<u8>, String) {
    let mut bytes = bytes.to_vec();
    let n_ways = if draws.below(2) == 0 { 1 } else { 1 + draws.below(4) };
    let ways: Vec<String> = (0..n_ways).map(|_| damage(&mut bytes, other, draws)).collect();
    (bytes, ways.join(", "))
}

fn damage(bytes: &mut Vec<u8>, other: &[u8], draws: &mut Draws) -> String {
    let n = bytes.len();
    if n == 0 {
        bytes.extend_from_slice(other.get(..draws.below(other.len())).unwrap_or_default());
        return "begun anew".to_owned();
    }
    match draws.below(14) {
        0 | 1 => {
            let (place, bit) = (draws.place(n), draws.below(8));
            bytes[place] ^= 1 << bit;
            format!("bit {bit} of byte {place} flipped")
        }
        2 | 3 => {
            let (place, value) = (draws.place(n), [0, 255, 1, 127, 128, draws.bits() as u8][draws.below(6)]);
            bytes[place] = value;
            format!("byte {place} set to {value}")
        }
        4 => {
            bytes.truncate(draws.below(n));
            format!("cut to {} bytes", bytes.len())
        }
        5 => {
            let part = draws.stretch(n);
            let (copy, times) = (bytes[part.clone()].to_vec(), 1 + draws.below(3));
            for _ in 0..times {
                bytes.splice(part.end..part.end, copy.iter().copied());
            }
            format!("bytes {part:?} repeated {times} times")
        }
        6 => {
            let part = draws.stretch(n);
            bytes.drain(part.clone());
            format!("bytes {part:?} removed")
        }
        7..=9 => {
            let (place, value) = (draws.place(n), SIZES[draws.below(SIZES.len())]);
            let (width, little) = ([2, 4, 8][draws.below(3)], draws.below(2) == 0);
            let word = if little { value.to_le_bytes() } else { value.to_be_bytes() };
            let word = if little { &word[..width] } else { &word[8 - width..] };
            let end = (place + width).min(n);
            bytes[place..end].copy_from_slice(&word[..end - place]);
            let order = if little { "little" } else { "big" };
            format!("{value} in {width} bytes at {place}, {order} end first")
        }
        10 => {
            // The number that begins at a digit drawn at random.
            let digits: Vec<usize> = (0..n).filter(|&i| bytes[i].is_ascii_digit()).collect();
            let Some(&place) = digits.get(draws.place(digits.len())) else {
                return "nothing, for lack of a digit".to_owned();
            };
            let length = bytes[place..].iter().take_while(|b| b.is_ascii_digit()).count();
            let number = draws.one_of(&NUMBERS);
            bytes.splice(place..place + length, number.bytes());
            format!("number at {place} made {number}")
        }
        11 => {
            let (place, mark) = (draws.place(n), draws.one_of(&MARKS));
            let times = if draws.below(4) == 0 { 1 << draws.below(15) } else { 1 };
            bytes.splice(place..place, mark.repeat(times).bytes());
            format!("{mark:?} {times} times at {place}")
        }
        12 => {
            let (mine, theirs) = (draws.place(n), draws.place(other.len()));
            bytes.truncate(mine);
            bytes.extend_from_slice(other.get(theirs..).unwrap_or_default());
            format!("from {mine} on another file from {theirs} on")
        }
        _ => {
            let (part, from) = (draws.stretch(n), draws.place(other.len()));
            let theirs = other.get(from..).unwrap_or_default();
            let n = part.len().min(theirs.len());
            bytes[part.start..part.start + n].copy_from_slice(&theirs[..n]);
            format!("{n} bytes of another file at {}", part.start)
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| match text.parse() {
        Ok(number) => number,
        Err(_) => panic!("{name} must be a number, got {text}"),
    })
}

/// Opens `n` mutants of `wholes`, each with another of its neighbours, in processes of their own.
///
/// `test` is the calling test's name, by which those processes call it again. `open` gets the
/// folder and the file that was damaged in it; it returns the error's text, if there is one.
///
/// # Panics
/// When a mutant fails, or a file that is whole is refused.
pub fn campaign(test: &str, wholes: &[Whole], n: u64, open: impl Fn(&Path, &Whole) -> Result<(), String>) {
    let seed = variable("CHANDLERY_MUTANTS_SEED").unwrap_or(1);
    let bench = Bench { seed, wholes, open };
    if let Some(mutant) = variable("CHANDLERY_MUTANT") {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mutant-{mutant}"));
        println!("mutant {mutant} of seed {seed} in {}", folder.display());
        println!("{:?}", bench.run(mutant, &folder));
        return;
    }
    if let Some(first) = variable("CHANDLERY_MUTANTS_FIRST") {
        let end = variable("CHANDLERY_MUTANTS_END").unwrap_or(0);
        return bench.work(first, end);
    }
    for whole in wholes {
        let folder = tempfile::tempdir().expect("a temporary folder");
        lay_out(folder.path(), whole, &(whole.wrap)(&whole.bytes));
        if let Err(text) = (bench.open)(folder.path(), whole) {
            panic!("{} is whole and was refused: {text}", whole.path);
        }
    }
    let n = variable("CHANDLERY_MUTANTS").unwrap_or(n);
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let watch = |worker| scope.spawn(move || watched(test, worker, n));
        let watching: Vec<_> = (0..WORKERS).map(watch).collect();
        watching.into_iter().map(|tally| tally.join().expect("a watcher")).collect()
    });
    let (mut refused, mut failures) = (0, vec![]);
    for tally in tallies {
        refused += tally.refused;
        failures.extend(tally.failures);
    }
    println!("{n} mutants of {} files, {refused} refused, {} failed", wholes.len(), failures.len());
    assert!(
        failures.is_empty(),
        "{} of {n} mutants failed; repeat one with CHANDLERY_MUTANTS_SEED={seed} CHANDLERY_MUTANT=NUMBER\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(
        n < 1000 || (refused > n / 4 && refused < n),
        "{refused} of {n} refused: the mutants are too tame or too wild"
    );
}

#[derive(Default)]
struct Tally {
    refused: u64,
    failures: Vec<String>,
}

/// Has processes open every `WORKERS`th mutant from `first` to `end`, one process after the other
/// where they die.
fn watched(test: &str, first: u64, end: u64) -> Tally {
    let mut tally = Tally::default();
    let mut next = first;
    while next < end {
        let program = std::env::current_exe().expect("the test's own path");
        let mut child = Command::new(program)
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env("CHANDLERY_MUTANTS_FIRST", next.to_string())
            .env("CHANDLERY_MUTANTS_END", end.to_string())
            .stdout(Stdio::piped())
            // Programs say there how they go.
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let (sender, receiver) = channel();
        let reading = std::thread::spawn(move || {
            for line in output.split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        let mut begun = None;
        let mut hangs = false;
        loop {
            let line = match receiver.recv_timeout(Duration::from_secs(4 * MOST_SECONDS)) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    hangs = true;
                    let _ = child.kill();
                    break;
                }
            };
            let mut words = line.splitn(3, ' ');
            match (words.next(), words.next().and_then(|word| word.parse::<u64>().ok()), words.next()) {
                (Some("@begun"), Some(mutant), what) => {
                    begun = Some((mutant, what.unwrap_or_default().to_owned()))
                }
                (Some("@refused"), Some(_), _) => tally.refused += 1,
                (Some("@failed"), Some(mutant), Some(why)) => {
                    tally.failures.push(format!("mutant {mutant}: {why}"))
                }
                _ => {}
            }
            if line.starts_with("@done") {
                begun = None;
            }
        }
        let status = child.wait().expect("its end");
        let _ = reading.join();
        match begun {
            _ if status.success() && !hangs => next = end,
            Some((mutant, what)) => {
                let end =
                    if hangs { "does not end".to_owned() } else { format!("ends the process: {status}") };
                tally.failures.push(format!("mutant {mutant}: {what}: {end}"));
                next = mutant + WORKERS;
            }
            None => {
                tally
                    .failures
                    .push(format!("the process from mutant {next} on ended before its first: {status}"));
                next = end;
            }
        }
    }
    tally
}

struct Bench<'a, F> {
    seed: u64,
    wholes: &'a [Whole],
    open: F,
}

/// How a mutant went.
#[derive(Debug)]
enum Outcome {
    Read,
    Refused(String),
    Failed(String),
}

/// Message and place of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

impl<F: Fn(&Path, &Whole) -> Result<(), String>> Bench<'_, F> {
    /// Opens every `WORKERS`th mutant and says so on standard output, before each and after.
    fn work(&self, first: u64, end: u64) {
        std::panic::set_hook(Box::new(|panic| {
            if let Ok(mut text) = PANIC.lock() {
                *text = panic.to_string().replace('\n', " ");
            }
        }));
        let mut mutant = first;
        println!();
        while mutant < end {
            let folder = tempfile::tempdir().expect("a temporary folder");
            match self.run(mutant, folder.path()) {
                Outcome::Read => {}
                Outcome::Refused(_) => println!("@refused {mutant}"),
                Outcome::Failed(why) => println!("@failed {mutant} {}: {why}", self.make(mutant).1),
            }
            mutant += WORKERS;
        }
        println!("@done");
        let _ = std::io::stdout().flush();
    }

    /// The whole file that a mutant is of, what was done to it, and what came of it.
    fn make(&self, mutant: u64) -> (&Whole, String, Vec<u8>) {
        let mut draws = Draws::new(self.seed, mutant);
        let whole = &self.wholes[mutant as usize % self.wholes.len()];
        let other = &self.wholes[draws.below(self.wholes.len())];
        let (bytes, what) = mutate(&whole.bytes, &other.bytes, &mut draws);
        (whole, format!("{} with {what}", whole.path), (whole.wrap)(&bytes))
    }

    fn run(&self, mutant: u64, folder: &Path) -> Outcome {
        let (whole, what, bytes) = self.make(mutant);
        println!("@begun {mutant} {what}");
        let _ = std::io::stdout().flush();
        lay_out(folder, whole, &bytes);
        let length = bytes.len();
        drop(bytes);
        Gauge::reset();
        let (before, start) = (Gauge::peak(), Instant::now());
        let result = catch_unwind(AssertUnwindSafe(|| (self.open)(folder, whole)));
        let (seconds, largest, peak) =
            (start.elapsed().as_secs_f64(), Gauge::largest(), Gauge::peak() - before);
        if seconds > MOST_SECONDS as f64 {
            return Outcome::Failed(format!("took {seconds:.1} s"));
        }
        if largest > (64 << 20) + 64 * length {
            return Outcome::Failed(format!("allocates {largest} bytes for a file of {length}"));
        }
        if peak > (256 << 20) + 2048 * length {
            return Outcome::Failed(format!("holds {peak} bytes for a file of {length}"));
        }
        match result {
            Err(_) => Outcome::Failed(PANIC.lock().map(|text| text.clone()).unwrap_or_default()),
            Ok(Ok(())) => Outcome::Read,
            Ok(Err(text)) if text.contains('\n') => {
                Outcome::Failed(format!("is refused by several lines: {text:?}"))
            }
            Ok(Err(text)) if !text.contains(&folder.display().to_string()) => {
                Outcome::Failed(format!("is refused without its path: {text}"))
            }
            Ok(Err(text)) => Outcome::Refused(text),
        }
    }
}

fn lay_out(folder: &Path, whole: &Whole, bytes: &[u8]) {
    let files = whole.beside.iter().map(|(path, bytes)| (path, bytes.as_slice()));
    for (path, bytes) in files.chain([(&whole.path, bytes)]) {
        let path = folder.join(path);
        let parent = path.parent().expect("a path within the folder");
        std::fs::create_dir_all(parent).expect("a folder");
        std::fs::write(path, bytes).expect("a file");
    }
}

/// A checkpoint with the checksum of its bytes, if it has a place for one.
pub fn sealed(bytes: &[u8]) -> Vec<u8> {
    const ENTRY: &[u8] = b"\"crc32\":\"";
    let mut bytes = bytes.to_vec();
    let place = bytes.windows(ENTRY.len()).position(|window| window == ENTRY).map(|at| at + ENTRY.len());
    if let Some(place) = place.filter(|place| place + 8 <= bytes.len()) {
        bytes[place..place + 8].copy_from_slice(b"00000000");
        let mut sum = flate2::Crc::new();
        sum.update(&bytes);
        bytes[place..place + 8].copy_from_slice(format!("{:08x}", sum.sum()).as_bytes());
    }
    bytes
}
