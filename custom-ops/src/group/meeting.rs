//! How processes find each other: rank 0 listens, the others come, all within a time limit.
use super::environment::Place;
use super::frames::{Frame, Kind};
use super::processes::{OnLoss, Processes};
use candle::{Error, Result};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// How long one may take to say who it is.
const HELLO: Duration = Duration::from_secs(5);
/// How long between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// Largest greeting, in bytes.
const GREETING: u64 = 1 << 16;

/// What a process says when it comes, beside its rank. The first three must be the same.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Greeting {
    version: String,
    world: String,
    run: String,
    rank: usize,
    host: String,
}

impl Greeting {
    fn of(place: &Place) -> Self {
        let (version, world) = (env!("CARGO_PKG_VERSION").to_owned(), place.world.to_string());
        let run = place.run.replace('\n', " ");
        Self { version, world, run, rank: place.rank, host: host_name() }
    }

    fn bytes(&self) -> Vec<u8> {
        let Self { version, world, run, rank, host } = self;
        format!("{version}\n{world}\n{run}\n{rank}\n{host}").into_bytes()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.split('\n').map(str::to_owned);
        let [version, world, run] = [lines.next()?, lines.next()?, lines.next()?];
        Some(Self { version, world, run, rank: lines.next()?.parse().ok()?, host: lines.next()? })
    }
}

/// The name of this machine.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "a host without a name".to_owned() } else { name.replace('\n', " ") }
}

impl Place {
    /// Where rank 0 is met, for people.
    fn meeting(&self) -> String {
        let ports = match (self.ports.first(), self.ports.last()) {
            (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
            (first, _) => first.map(ToString::to_string).unwrap_or_default(),
        };
        format!("{}:{ports}", self.host)
    }

    fn addresses(&self, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok((self.host.as_str(), port).to_socket_addrs()?.collect())
    }

    /// Listens as rank 0, at the first port that is free; port 0 is any. A host that others cannot
    /// reach, as `localhost`, is listened at alone, else all addresses of this machine.
    ///
    /// # Errors
    /// When no port is free.
    pub fn listen(&self) -> Result<TcpListener> {
        let mut why = None;
        for &port in &self.ports {
            let own = self.addresses(port).unwrap_or_default();
            let local: Vec<_> = own.iter().filter(|address| address.ip().is_loopback()).copied().collect();
            let any = [IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from([0; 4])];
            let any = any.map(|ip| SocketAddr::new(ip, port));
            let at = if local.is_empty() { &any[..] } else { &local[..] };
            match TcpListener::bind(at) {
                Ok(listener) => return Ok(listener),
                Err(err) => why = Some(err),
            }
        }
        let why = why.map(|why| why.to_string()).unwrap_or_default();
        candle::bail!("rank 0 cannot listen at {}: {why}", self.meeting())
    }
}

impl Processes {
    /// Meets the processes of all other ranks; returns when all have come.
    ///
    /// `on_loss` is called once, from another thread, when a rank is gone: while a GPU waits for it, no
    /// call of this process may ever return, so that a program should end there.
    ///
    /// # Errors
    /// When ranks do not come within `limit`, which are named; when one is of another version or
    /// another number of processes; or when the network refuses.
    pub fn meet(place: &Place, limit: Duration, on_loss: OnLoss) -> Result<Self> {
        if place.rank == 0 {
            return Self::host(&place.listen()?, place, limit, on_loss, || Ok(()));
        }
        let until = Instant::now() + limit;
        let greeting = Frame::new(Kind::Hello, 0, Greeting::of(place).bytes());
        let mut why = None;
        while Instant::now() < until {
            for &port in &place.ports {
                let met = match come(place, port, &greeting, until) {
                    Ok(met) => met,
                    Err(err) => {
                        why = Some(err);
                        continue;
                    }
                };
                let (stream, reply) = met;
                let text = String::from_utf8_lossy(&reply.bytes).into_owned();
                if reply.kind == Kind::Refused {
                    candle::bail!("{text}")
                }
                let hosts = text.split('\n').map(str::to_owned).collect();
                return Ok(Self::start(place, hosts, vec![(0, stream)], on_loss)?);
            }
            thread::sleep(5 * LOOK);
        }
        candle::bail!(
            "rank 0 of {} did not answer rank {} at {} within {} s: {}",
            place.world,
            place.rank,
            place.meeting(),
            limit.as_secs_f64(),
            why.map(|why| why.to_string()).unwrap_or_default()
        )
    }

    /// The same as rank 0, which listens already; `still` is asked meanwhile whether the others can
    /// still come.
    ///
    /// # Errors
    /// As [`meet`](Self::meet), and those of `still`.
    pub fn host(
        listener: &TcpListener,
        place: &Place,
        limit: Duration,
        on_loss: OnLoss,
        mut still: impl FnMut() -> Result<()>,
    ) -> Result<Self> {
        let (until, own) = (Instant::now() + limit, Greeting::of(place));
        listener.set_nonblocking(true)?;
        let mut came: Vec<Option<(TcpStream, String)>> = (0..place.world).map(|_| None).collect();
        let (comes, coming) = channel();
        let refuse = |came: Vec<Option<(TcpStream, String)>>, why: &str| {
            let frame = Frame::new(Kind::Refused, 0, why.as_bytes().to_vec());
            came.into_iter().flatten().for_each(|(stream, _)| drop(frame.write(&stream)));
            Err(Error::Msg(why.to_owned()))
        };
        while came.iter().skip(1).any(Option::is_none) {
            let now = Instant::now();
            if now >= until {
                let missing: Vec<_> = (1..)
                    .zip(came.iter().skip(1))
                    .filter(|(_, of)| of.is_none())
                    .map(|(rank, _)| rank)
                    .collect();
                let why = format!(
                    "{} of {} did not come to {} within {} s",
                    ranks(&missing),
                    place.world,
                    place.meeting(),
                    limit.as_secs_f64()
                );
                return refuse(came, &why);
            }
            if let Err(err) = still() {
                let why = err.to_string();
                return refuse(came, &why);
            }
            while let Ok((stream, _)) = listener.accept() {
                let comes = comes.clone();
                let hear = move || {
                    // Who says nothing, or something else, is no rank.
                    if let Ok(greeting) = hear(&stream) {
                        let _ = comes.send((stream, greeting));
                    }
                };
                thread::Builder::new().spawn(hear)?;
            }
            let Ok((stream, of)) = coming.recv_timeout(LOOK) else { continue };
            if of.run != own.run {
                let why = format!("{} is the meeting of another start; choose another port", place.meeting());
                drop(Frame::new(Kind::Refused, 0, why.into_bytes()).write(&stream));
                continue;
            }
            let who = format!("rank {} on {}", of.rank, of.host);
            let differs = if of.version != own.version {
                Some(format!("{who} is of version {}, and rank 0 of version {}", of.version, own.version))
            } else if of.world != own.world {
                Some(format!("{who} is one of {} processes, and rank 0 of {}", of.world, own.world))
            } else {
                None
            };
            let place = came.get_mut(of.rank).filter(|place| of.rank > 0 && place.is_none());
            match (differs, place) {
                (None, Some(place)) => *place = Some((stream, of.host)),
                (differs, _) => {
                    let why = differs.unwrap_or_else(|| format!("{who} came twice"));
                    drop(Frame::new(Kind::Refused, 0, why.clone().into_bytes()).write(&stream));
                    return refuse(came, &why);
                }
            }
        }
        let hosts = came.iter().flatten().map(|(_, host)| host.clone());
        let hosts: Vec<String> = std::iter::once(own.host.clone()).chain(hosts).collect();
        let welcome = Frame::new(Kind::Welcome, 0, hosts.join("\n").into_bytes());
        let mut links = Vec::new();
        for (rank, stream) in came.into_iter().enumerate().filter_map(|(rank, of)| Some((rank, of?.0))) {
            welcome
                .write(&stream)
                .map_err(|err| Error::Msg(format!("rank {rank} of {}: {err}", place.world)))?;
            links.push((rank, stream));
        }
        Ok(Self::start(place, hosts, links, on_loss)?)
    }
}

/// `rank 2`, `ranks 1, 2 and 5`.
fn ranks(all: &[usize]) -> String {
    let words: Vec<String> = all.iter().map(ToString::to_string).collect();
    match words.split_last() {
        Some((last, [])) => format!("rank {last}"),
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Hears who comes, and says so.
fn hear(stream: &TcpStream) -> io::Result<Greeting> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HELLO))?;
    let said = Frame::read(stream, GREETING)?;
    let greeting = Greeting::read(&said.bytes).filter(|_| said.kind == Kind::Hello);
    let greeting = greeting.ok_or(io::ErrorKind::InvalidData)?;
    Frame::new(Kind::Heard, 0, Vec::new()).write(stream)?;
    Ok(greeting)
}

/// Comes to rank 0 at a port, and waits until all have come or it refuses.
fn come(place: &Place, port: u16, greeting: &Frame, until: Instant) -> io::Result<(TcpStream, Frame)> {
    let left = |most: Duration| until.saturating_duration_since(Instant::now()).clamp(LOOK, most);
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in place.addresses(port)? {
        let stream = match TcpStream::connect_timeout(&address, left(HELLO)) {
            Ok(stream) => stream,
            Err(err) => {
                last = err;
                continue;
            }
        };
        stream.set_read_timeout(Some(left(HELLO)))?;
        greeting.write(&stream)?;
        if Frame::read(&stream, GREETING)?.kind != Kind::Heard {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Rank 0 has a time limit of its own, and says so when it is over.
        stream.set_read_timeout(Some(left(Duration::MAX) + HELLO))?;
        let reply = Frame::read(&stream, u64::MAX)?;
        return match reply.kind {
            Kind::Welcome | Kind::Refused => Ok((stream, reply)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        };
    }
    Err(last)
}
