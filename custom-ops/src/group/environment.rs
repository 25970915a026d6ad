//! What started this process: torchrun, SLURM or Open MPI, each by its own environment variables.
use candle::Result;
use std::env;

/// The place that a launcher gave this process, and where rank 0 is met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Which of the processes this is, from 0.
    pub rank: usize,
    /// Which of those on this host, from 0: the GPU to take.
    pub local_rank: usize,
    /// How many processes there are.
    pub world: usize,
    /// Host of rank 0, as the others reach it.
    pub host: String,
    /// Ports where rank 0 may listen, in the order in which they are tried.
    pub ports: Vec<u16>,
    /// The same text for all processes of a start, and another for other starts.
    pub run: String,
}

/// Ports that are tried where the launcher itself may hold the one that it names.
const TRIED: u16 = 8;
/// Ports of jobs: from here on, by the number of the job.
const PORTS_OF_JOBS: (u16, u64) = (61_440, 4096);

impl Place {
    /// The place of this process among several; none where no launcher started it, or it alone.
    ///
    /// | launcher | variables |
    /// |---|---|
    /// | torchrun and those that set the same | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT` |
    /// | `srun` of SLURM | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID`, `SLURM_STEP_NODELIST`, `SLURM_JOB_ID` |
    /// | `mpirun` of Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK` |
    ///
    /// `MASTER_ADDR` and `MASTER_PORT` say for each of them where rank 0 is met. Without them it is the
    /// first host of a step of SLURM, and for Open MPI the host of `mpirun`, at a port that follows from
    /// the number of the job.
    ///
    /// # Errors
    /// When a variable is missing or no number, or a rank is not below the number of processes.
    pub fn of_environment() -> Result<Option<Self>> {
        Self::of_variables(|name| env::var(name).ok())
    }

    /// The same of variables that the caller knows.
    ///
    /// # Errors
    /// As there.
    pub fn of_variables(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let get = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let number = |name: &str| -> Result<Option<usize>> {
            let Some(text) = get(name) else { return Ok(None) };
            match text.trim().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => candle::bail!("{name} must be a whole number, got {text:?}"),
            }
        };
        let needed = |name: &str, with: &str| match number(name)? {
            Some(number) => Ok(number),
            None => candle::bail!("{name} must be set where {with} is"),
        };
        let master = Master { host: get("MASTER_ADDR"), port: number("MASTER_PORT")? };

        let (of, rank, world, local_rank, (host, ports), run) = if get("RANK").is_some()
            && get("WORLD_SIZE").is_some()
        {
            let (rank, world) = (needed("RANK", "WORLD_SIZE")?, needed("WORLD_SIZE", "RANK")?);
            let is_held = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
            let Some(meeting) = master.meeting(is_held)? else {
                if world == 1 {
                    return Ok(None);
                }
                candle::bail!("MASTER_ADDR and MASTER_PORT must be set where RANK and WORLD_SIZE are")
            };
            let run = get("TORCHELASTIC_RUN_ID").unwrap_or_default();
            ("RANK", rank, world, number("LOCAL_RANK")?.unwrap_or(rank), meeting, run)
        } else if let (Some(rank), Some(hosts)) = (number("SLURM_PROCID")?, get("SLURM_STEP_NODELIST")) {
            let world = match number("SLURM_STEP_NUM_TASKS")? {
                Some(world) => world,
                None => needed("SLURM_NTASKS", "SLURM_PROCID")?,
            };
            let (job, step) =
                (get("SLURM_JOB_ID").unwrap_or_default(), get("SLURM_STEP_ID").unwrap_or_default());
            let meeting = match master.meeting(false)? {
                Some(meeting) => meeting,
                None => (first_host(&hosts), vec![port_of_job(&format!("{job}.{step}"))]),
            };
            let local_rank = needed("SLURM_LOCALID", "SLURM_PROCID")?;
            ("SLURM_PROCID", rank, world, local_rank, meeting, format!("{job}.{step}"))
        } else if let Some(rank) = number("OMPI_COMM_WORLD_RANK")? {
            let world = needed("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")?;
            let job = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"].into_iter().find_map(&get);
            let job = job.unwrap_or_default();
            let is_one_host = number("OMPI_COMM_WORLD_LOCAL_SIZE")? == Some(world);
            let meeting = match (master.meeting(false)?, get("OMPI_MCA_orte_hnp_uri")) {
                (Some(meeting), _) => meeting,
                (None, _) if is_one_host => ("127.0.0.1".to_owned(), vec![port_of_job(&job)]),
                (None, Some(uri)) => (host_of_mpirun(&uri)?, vec![port_of_job(&job)]),
                (None, None) => candle::bail!(
                    "mpirun: MASTER_ADDR and MASTER_PORT must say where rank 0 is met; add -x MASTER_ADDR=HOST -x MASTER_PORT=29500"
                ),
            };
            let local_rank = needed("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK")?;
            ("OMPI_COMM_WORLD_RANK", rank, world, local_rank, meeting, job)
        } else {
            return Ok(None);
        };
        if rank >= world {
            candle::bail!("{of} must be below {world}, the number of processes, got {rank}")
        }
        Ok((world > 1).then_some(Self { rank, local_rank, world, host, ports, run }))
    }
}

/// `MASTER_ADDR` and `MASTER_PORT`.
struct Master {
    host: Option<String>,
    port: Option<usize>,
}

impl Master {
    /// The host and the ports, where both are set; with `is_held` the launcher itself listens at the
    /// port, so that those behind it are tried.
    fn meeting(&self, is_held: bool) -> Result<Option<(String, Vec<u16>)>> {
        let (Some(host), Some(port)) = (&self.host, self.port) else { return Ok(None) };
        let Some(port) = u16::try_from(port).ok().filter(|port| (1..=u16::MAX - TRIED).contains(port)) else {
            candle::bail!("MASTER_PORT must be in 1..{}, got {port}", u16::MAX - TRIED)
        };
        let ports = if is_held { (1..=TRIED).map(|i| port + i).collect() } else { vec![port] };
        Ok(Some((host.clone(), ports)))
    }
}

/// The port of a job: of its number, where it is one, else of its letters.
fn port_of_job(job: &str) -> u16 {
    let digits: String = job.chars().take_while(char::is_ascii_digit).collect();
    let number = digits.parse().unwrap_or_else(|_| {
        // FNV-1a; the same on all hosts.
        job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
    });
    let (first, n) = PORTS_OF_JOBS;
    first + (number % n) as u16 % (u16::MAX - first)
}

/// The first host of a list as SLURM writes it: of `node[07-09,12],other` it is `node07`.
fn first_host(list: &str) -> String {
    let (name, rest) = list.split_at(list.find(['[', ',']).unwrap_or(list.len()));
    let Some(numbers) = rest.strip_prefix('[') else { return name.to_owned() };
    let first = numbers.split(['-', ',', ']']).next().unwrap_or_default();
    // Names may go on behind the brackets: `rack[1-2]-gpu`.
    let behind = numbers.split_once(']').map_or("", |(_, behind)| behind);
    format!("{name}{first}{}", behind.split(['[', ',']).next().unwrap_or_default())
}

/// The host of `mpirun` in its address: `1531576320.0;tcp://10.96.0.1,10.148.0.1:34911`.
fn host_of_mpirun(uri: &str) -> Result<String> {
    let addresses = uri.split(';').find_map(|part| part.strip_prefix("tcp://"));
    let host = addresses.and_then(|text| text.split([',', ':']).next()).filter(|host| !host.is_empty());
    match host {
        Some(host) => Ok(host.to_owned()),
        None => candle::bail!("OMPI_MCA_orte_hnp_uri must name a tcp address, got {uri:?}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(variables: &str) -> Result<Option<Place>> {
        Place::of_variables(|name| {
            let of_name = |pair: &str| pair.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
            variables.split_whitespace().find_map(of_name)
        })
    }

    fn place(variables: &str) -> (usize, usize, usize, String, u16, usize) {
        let at = of(variables).unwrap().unwrap();
        (at.rank, at.local_rank, at.world, at.host, at.ports[0], at.ports.len())
    }

    #[test]
    fn the_variables_of_each_launcher_say_the_place() {
        // Two hosts with two GPUs each: the second process of the second host.
        let torchrun = "RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 MASTER_ADDR=node-a MASTER_PORT=29500";
        assert_eq!(place(torchrun), (3, 1, 4, "node-a".into(), 29500, 1));
        // The agent of torchrun listens at its port already.
        let held = format!("{torchrun} TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=a");
        assert_eq!(place(&held), (3, 1, 4, "node-a".into(), 29501, 8));
        let srun = "SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NTASKS=4 SLURM_STEP_NODELIST=node[07-08] SLURM_JOB_ID=4100 SLURM_STEP_ID=0";
        assert_eq!(place(srun), (3, 1, 4, "node07".into(), 61_440 + 4, 1));
        // A step may have fewer tasks than its job.
        assert_eq!(
            place("SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=9 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=x SLURM_JOB_ID=1").2,
            2
        );
        let mpirun = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1";
        let one_host = format!("{mpirun} OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=17");
        assert_eq!(place(&one_host), (1, 1, 2, "127.0.0.1".into(), 61_440 + 17, 1));
        let two = format!("{mpirun} OMPI_MCA_orte_hnp_uri=1531576320.0;tcp://10.96.0.1,10.148.0.1:34911");
        assert_eq!(place(&two).3, "10.96.0.1");
        // What the user says stands for every launcher.
        for variables in [srun, &two] {
            let at = place(&format!("{variables} MASTER_ADDR=node-b MASTER_PORT=4000"));
            assert_eq!((at.3.as_str(), at.4), ("node-b", 4000));
        }
    }

    #[test]
    fn one_process_alone_has_no_place() {
        for variables in [
            "",
            "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=1",
            "RANK=0 WORLD_SIZE=1",
            // Some shells have these of something else.
            "RANK=7",
            "WORLD_SIZE=4",
            // The script of a job, which srun did not start.
            "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=4 SLURM_JOB_ID=9 SLURM_JOB_NODELIST=node[1-4]",
        ] {
            assert_eq!(of(variables).unwrap(), None, "{variables}");
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (variables, want) in [
            ("RANK=0 WORLD_SIZE=2", "MASTER_ADDR and MASTER_PORT must be set where RANK and WORLD_SIZE are"),
            (
                "RANK=2 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1",
                "RANK must be below 2, the number of processes, got 2",
            ),
            ("RANK=x WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", "RANK must be a whole number, got \"x\""),
            (
                "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000",
                "MASTER_PORT must be in 1..65527, got 70000",
            ),
            ("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE must be set where OMPI_COMM_WORLD_RANK is"),
            (
                "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0",
                "mpirun: MASTER_ADDR and MASTER_PORT must say where rank 0 is met; add -x MASTER_ADDR=HOST -x MASTER_PORT=29500",
            ),
        ] {
            let said = of(variables).unwrap_err().to_string();
            assert_eq!(said.lines().next(), Some(want), "{variables}");
        }
    }

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, want) in [
            ("gpu-a", "gpu-a"),
            ("gpu-a,gpu-b", "gpu-a"),
            ("node[07-09,12],other", "node07"),
            ("node[3,5-8]", "node3"),
            ("rack[1-2]-gpu,x", "rack1-gpu"),
        ] {
            assert_eq!(first_host(list), want, "{list}");
        }
    }

    #[test]
    fn ports_of_jobs_can_be_listened_at() {
        for job in ["", "0", "4095", "4096.1", "18446744073709551615", "prterun-node-a-1234@1"] {
            assert!(port_of_job(job) >= 61_440, "{job}");
        }
        assert_eq!((port_of_job("4096.1"), port_of_job("4095")), (61_440, 61_440));
    }
}
