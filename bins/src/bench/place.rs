//! Where work is timed: one thread, all cores, a GPU.
use crate::device::describe;
use anyhow::{Context, Result};
use candle::Device;

/// The device of a timed run.
pub(super) struct Place {
    pub device: Device,
    /// The pool of one thread; none for a whole device.
    pub pool: Option<rayon::ThreadPool>,
}

impl Place {
    /// One thread of the CPU where `single` is set, all cores, and the device if it is not the CPU.
    pub fn all(device: &Device, single: bool) -> Result<Vec<Self>> {
        let mut places = Self::ends(&Device::Cpu, single)?;
        if !device.is_cpu() {
            places.push(Self::whole(device));
        }
        Ok(places)
    }

    /// One thread of the CPU where `single` is set, and the device.
    pub fn ends(device: &Device, single: bool) -> Result<Vec<Self>> {
        let mut places = Vec::new();
        if single {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().context("one thread")?;
            places.push(Self { device: Device::Cpu, pool: Some(pool) });
        }
        places.push(Self::whole(device));
        Ok(places)
    }

    /// A whole device.
    pub fn whole(device: &Device) -> Self {
        Self { device: device.clone(), pool: None }
    }

    pub fn name(&self) -> String {
        if self.pool.is_some() { "cpu, 1 thread".to_owned() } else { describe(&self.device) }
    }

    /// Runs work on this device, or on the one thread.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_thread_is_a_place_of_its_own_unless_it_is_left_out() {
        let threads = |place: &Place| place.run(rayon::current_num_threads);
        for places in [Place::all, Place::ends] {
            let both = places(&Device::Cpu, true).unwrap();
            assert_eq!(both.iter().map(threads).collect::<Vec<_>>(), [1, rayon::current_num_threads()]);
            assert_eq!(both[0].name(), "cpu, 1 thread");
            let without = places(&Device::Cpu, false).unwrap();
            assert!(without.len() == 1 && without[0].pool.is_none());
        }
    }
}
