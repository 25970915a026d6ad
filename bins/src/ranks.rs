//! Several processes of one program that compute together: how they start, meet and end.
//!
//! torchrun, `srun` and `mpirun` start them ([`Place`]), or `--gpus N`: then the program starts itself
//! again for each other rank, and is rank 0. Only rank 0 prints and writes files. A rank that fails
//! or is gone ends all others with a line that names it.
use crate::device::DeviceChoice;
use crate::interrupt;
use crate::options::Common;
use crate::report::{self, complain};
use anyhow::{Context, Result, bail, ensure};
use candle::Device;
use chandlery::Group;
use chandlery_ops::group::{OnLoss, Place, Processes, Wish};
use clap::Args;
use std::fmt;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long the processes that this one started may take to end after it.
const LEAVE: Duration = Duration::from_secs(8);

/// How many GPUs of this host: a number, or all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gpus {
    /// So many, at least 1.
    Some(usize),
    /// As many as there are.
    All,
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Some(n) => write!(f, "{n}"),
            Self::All => write!(f, "all"),
        }
    }
}

impl FromStr for Gpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            _ if text == "all" => Ok(Self::All),
            Ok(n @ 1..=1024) => Ok(Self::Some(n)),
            _ => Err("must be all, or a whole number from 1 to 1024".to_owned()),
        }
    }
}

/// How many processes compute together.
#[derive(Debug, Clone, Args)]
pub struct RanksArgs {
    /// Compute on this many GPUs of this machine, or on all: the program starts itself once more
    /// for each further GPU. Leave it out under torchrun, srun or mpirun. With --device cpu, which
    /// is for trying things, as many processes share the cores.
    #[arg(long, value_name = "N")]
    pub gpus: Option<Gpus>,
    /// How long to wait for the processes of all GPUs to start, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60., value_parser = crate::options::above_zero)]
    pub group_timeout: f64,
}

/// The processes that compute together; one alone has none.
#[derive(Debug, Clone, Default)]
pub struct Ranks {
    processes: Option<Arc<Processes>>,
}

/// What the end of the process must know. There is one, as there is one process.
static JOINED: OnceLock<Arc<Processes>> = OnceLock::new();
/// The processes that this one started.
static STARTED: Mutex<Vec<Child>> = Mutex::new(Vec::new());

fn started() -> MutexGuard<'static, Vec<Child>> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Meets the other processes, if there are any, and opens the device of this one.
///
/// # Errors
/// When some do not come in time, or there are fewer GPUs.
pub fn join(args: &RanksArgs, common: &Common) -> Result<(Ranks, Device)> {
    let place = Place::of_environment().map_err(|err| anyhow::anyhow!(report::one_line(&err.into())))?;
    let limit = Duration::from_secs_f64(args.group_timeout.min(1e6));
    let n_here = match args.gpus {
        _ if place.is_some() => 1,
        None => 1,
        Some(Gpus::Some(n)) => n,
        Some(Gpus::All) => match common.device {
            DeviceChoice::Cpu => bail!("--gpus all: there are no GPUs with --device cpu; name a number"),
            DeviceChoice::Cuda(_) => chandlery_ops::core::n_gpus().context("--gpus all")?.max(1),
        },
    };
    let (processes, local_rank) = match place {
        Some(place) => {
            if let Some(Gpus::Some(n)) = args.gpus {
                let world = place.world;
                ensure!(n == world, "--gpus {n}: a launcher has started {world} processes; leave out --gpus");
            }
            report::be_rank(place.rank, place.world);
            (Processes::meet(&place, limit, on_loss())?, place.local_rank)
        }
        None if n_here > 1 => (start_others(n_here, limit)?, 0),
        None => return Ok((Ranks::default(), common.open_device_alone()?)),
    };
    let processes = JOINED.get_or_init(|| Arc::new(processes)).clone();
    if common.threads.threads.is_none() && std::env::var_os("RAYON_NUM_THREADS").is_none() {
        // Those of one host share its cores.
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        let of_rank = (cores / processes.on_this_host()).max(1);
        crate::options::ThreadsArg { threads: Some(of_rank) }.start()?;
    } else {
        common.threads.start()?;
    }
    let device = of_rank(common.device, local_rank)?.open()?;
    Ok((Ranks { processes: Some(processes) }, device))
}

/// The device of a rank of this host.
fn of_rank(asked: DeviceChoice, local_rank: usize) -> Result<DeviceChoice> {
    let DeviceChoice::Cuda(ordinal) = asked else { return Ok(asked) };
    ensure!(
        ordinal == 0,
        "--device {asked}: with several processes each takes a GPU of its own; choose them by CUDA_VISIBLE_DEVICES"
    );
    // A launcher may show each process one GPU only.
    let n = chandlery_ops::core::n_gpus().unwrap_or(1);
    Ok(DeviceChoice::Cuda(if n == 1 { 0 } else { local_rank }))
}

/// Starts this program again for each other rank, and meets them.
fn start_others(world: usize, limit: Duration) -> Result<Processes> {
    report::be_rank(0, world);
    let run = format!("{}-{}", std::process::id(), chandlery_datasets::count(world, "process"));
    let host = "127.0.0.1".to_owned();
    let place = Place { rank: 0, local_rank: 0, world, host, ports: vec![0], run };
    let listener = place.listen()?;
    let place = Place { ports: vec![listener.local_addr()?.port()], ..place };
    let program = std::env::current_exe().context("cannot find this program")?;
    for rank in 1..world {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).stdin(Stdio::null()).stdout(Stdio::null());
        let port = place.ports.first().copied().unwrap_or_default();
        command.env_remove("TORCHELASTIC_USE_AGENT_STORE").env("TORCHELASTIC_RUN_ID", &place.run);
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("WORLD_SIZE", world.to_string());
        command.env("MASTER_ADDR", &place.host).env("MASTER_PORT", port.to_string());
        let child = command.spawn().with_context(|| format!("cannot start rank {rank} of {world}"))?;
        started().push(child);
    }
    let still = || {
        for (child, rank) in started().iter_mut().zip(1..) {
            if let Ok(Some(status)) = child.try_wait() {
                candle::bail!("rank {rank} of {world} ended before it came: {status}")
            }
        }
        Ok(())
    };
    Ok(Processes::host(&listener, &place, limit, on_loss(), still)?)
}

/// Ends the process: a GPU may wait for the rank that is gone for ever.
fn on_loss() -> OnLoss {
    Box::new(|why| {
        // Rank 0 says it for all, unless it is the one.
        if report::rank() == 0 || why.starts_with("rank 0 ") {
            complain(why);
        }
        leave(false);
        interrupt::end_now(1)
    })
}

/// Waits for the end of the process where a rank is gone, which another thread brings about and has
/// said.
pub fn wait_if_lost() {
    if JOINED.get().is_some_and(|processes| processes.is_lost()) {
        thread::sleep(LEAVE + LEAVE);
    }
}

/// The end of a process: where it joined others, says to them whether it failed, and waits for those
/// that it started. Returns whether there were others.
pub fn end(failed: Option<&str>) -> bool {
    if let Some(processes) = JOINED.get() {
        match failed {
            Some(why) => processes.fail(why),
            None => processes.leave(),
        }
    }
    leave(failed.is_none());
    JOINED.get().is_some()
}

/// Waits for the processes that this one started, and ends those that do not.
fn leave(in_order: bool) {
    let until = Instant::now() + if in_order { LEAVE } else { LEAVE / 5 };
    for mut child in started().drain(..) {
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        // One that has ended already cannot be killed.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Whether this process is the one that writes files, as far as its launcher says: rank 0, or
/// alone. To be asked before ranks meet.
pub fn is_to_write() -> bool {
    !matches!(Place::of_environment(), Ok(Some(place)) if place.rank > 0)
}

impl Ranks {
    /// Which rank this is, and of how many.
    pub fn place(&self) -> (usize, usize) {
        self.processes.as_ref().map_or((0, 1), |processes| (processes.rank(), processes.world()))
    }

    /// Whether this is rank 0, which writes files.
    pub fn is_first(&self) -> bool {
        self.processes.as_ref().is_none_or(|processes| processes.rank() == 0)
    }

    /// Whether there are several.
    pub fn are_several(&self) -> bool {
        self.processes.is_some()
    }

    /// Refuses ranks that were asked for something else, as these lines have it.
    ///
    /// # Errors
    /// When a rank differs, or is gone.
    pub fn agree(&self, lines: impl FnOnce() -> Result<String>) -> Result<()> {
        match &self.processes {
            Some(processes) => Ok(processes.agree(&lines()?)?),
            None => Ok(()),
        }
    }

    /// What each brings, in the order of ranks, on every rank.
    ///
    /// # Errors
    /// When a rank is gone.
    pub fn exchange(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        match &self.processes {
            Some(processes) => Ok(processes.exchange(mine)?),
            None => Ok(vec![mine]),
        }
    }

    /// The sums over ranks of as many numbers of each, in the order of ranks, on every rank.
    ///
    /// # Errors
    /// When a rank has another number of them, or is gone.
    pub fn sums<const N: usize>(&self, mine: [f64; N]) -> Result<[f64; N]> {
        let all = self.exchange(mine.iter().flat_map(|number| number.to_le_bytes()).collect())?;
        let mut sums = [0.; N];
        for (rank, of_rank) in all.iter().enumerate() {
            let (numbers, rest) = of_rank.as_chunks();
            ensure!(
                numbers.len() == N && rest.is_empty(),
                "all ranks must have {N} numbers, got {} bytes of rank {rank}",
                of_rank.len()
            );
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += f64::from_le_bytes(*number));
        }
        Ok(sums)
    }

    /// The group of their devices.
    ///
    /// # Errors
    /// When NCCL is missing, or a rank is gone.
    pub fn group(&self, device: &Device) -> Result<Group> {
        match &self.processes {
            Some(processes) => Ok(Group::of_processes(processes, device)?),
            None => Ok(Group::single()),
        }
    }

    /// Does something on rank 0, and then something on the others.
    ///
    /// # Errors
    /// That of either, and when a rank is gone.
    pub fn first_then<T>(
        &self,
        first: impl FnOnce() -> Result<T>,
        others: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(processes) = &self.processes else { return first() };
        if self.is_first() {
            let made = first()?;
            processes.wait()?;
            Ok(made)
        } else {
            processes.wait()?;
            others()
        }
    }

    /// What all ranks do after this step: what one of them wants now, if it is wanted anywhere.
    ///
    /// # Errors
    /// When a rank is gone.
    pub fn after_step(&self, wanted: Wish) -> Result<Wish> {
        let Some(processes) = &self.processes else { return Ok(wanted) };
        if !wanted.is_none() {
            processes.ask(wanted);
        }
        Ok(processes.turn()?)
    }

    /// At the end of a loop: whether a stop was asked for on any rank.
    ///
    /// # Errors
    /// When a rank is gone.
    pub fn any_stops(&self, stop: bool) -> Result<bool> {
        let Some(processes) = &self.processes else { return Ok(stop) };
        let due = processes.turn()?.stop;
        Ok(processes.exchange(vec![u8::from(stop | due)])?.concat().contains(&1))
    }

    /// From here on rank 0 goes on alone: ends the process of another rank when that is done.
    pub fn first_goes_on(&self) {
        if !self.is_first() {
            self.wait_for_first()
        }
    }

    fn wait_for_first(&self) -> ! {
        interrupt::take_words();
        let ended = self.processes.as_ref().map_or(Ok(()), |processes| processes.wait_for_first());
        wait_if_lost();
        interrupt::end_now(i32::from(ended.is_err()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_a_number_or_all() {
        for text in ["1", "8", "1024", "all"] {
            assert_eq!(text.parse::<Gpus>().map(|gpus| gpus.to_string()), Ok(text.to_owned()));
        }
        for text in ["0", "-1", "1025", "", "ALL", "2.5"] {
            assert!(text.parse::<Gpus>().is_err(), "{text:?}");
        }
    }
}
