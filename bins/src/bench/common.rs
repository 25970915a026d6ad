//! Options of every benchmark.
use crate::device::DeviceChoice;
use crate::options::ThreadsArg;
use candle::Device;
use clap::Args;

/// Options of every benchmark.
#[derive(Debug, Args)]
pub struct CommonArgs {
    /// Where to run: cpu, cuda (GPU 0) or cuda:N.
    #[arg(long, default_value_t)]
    pub device: DeviceChoice,
    /// How many threads the CPU uses.
    #[command(flatten)]
    pub threads: ThreadsArg,
    /// Number of timed runs; the median, the fastest and the slowest are printed.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print one JSON array of rows to standard output instead of a table.
    #[arg(long)]
    pub json: bool,
}

impl CommonArgs {
    /// Opens the device, after starting the threads of the CPU.
    ///
    /// # Errors
    /// When the system refuses so many threads, or the device is missing.
    pub fn open_device(&self) -> anyhow::Result<Device> {
        self.threads.start()?;
        self.device.open()
    }
}
