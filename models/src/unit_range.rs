//! Rows that must lie between 0 and 1: states or probabilities of Bernoulli units, and targets of
//! sigmoid outputs.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::arrays::extend_range_;

/// How far beyond 0 and 1 rounding may bring a value.
const ROUNDING: f32 = 1e-5;

/// Whether values from `least` to `most` can be probabilities: they lie between 0 and 1, up to
/// rounding.
pub fn in_unit_interval(least: f32, most: f32) -> bool {
    least >= -ROUNDING && most <= 1. + ROUNDING
}

/// The range of the rows that a trainer was given, gathered on the device and read by
/// [`check`](Self::check).
pub(crate) struct UnitRange {
    /// What needs rows between 0 and 1, and what does not: `Bernoulli visible units`,
    /// `gaussian ones`.
    needs: &'static str,
    instead: &'static str,
    /// Least and most byte, and least and most float, before they are scaled: `[2, 2]` f32.
    seen: Tensor,
    /// What bytes and floats are multiplied by.
    scales: [f32; 2],
    /// Ranks whose rows count, each having seen its own.
    group: Group,
}

impl UnitRange {
    pub(crate) fn new(needs: &'static str, instead: &'static str, device: &Device) -> Result<Self> {
        let seen = Tensor::new(&[[f32::INFINITY, f32::NEG_INFINITY]; 2], device)?;
        Ok(Self { needs, instead, seen, scales: [1.; 2], group: Group::single() })
    }

    /// Refuses what any rank of a group has seen, on all of them.
    pub(crate) fn in_group(&mut self, group: &Group) {
        self.group = group.clone();
    }

    /// Adds rows as [`to_load`](crate::prepare::to_load) gives them, and the factor above 0 that
    /// makes prepared ones of them. Waits for nothing, and does nothing with bytes that cannot
    /// leave the range.
    pub(crate) fn see(&mut self, rows: &Tensor, scale: f32) -> Result<()> {
        let bytes = rows.dtype() == DType::U8;
        if bytes && in_unit_interval(0., 255. * scale) {
            return Ok(());
        }
        let kind = usize::from(!bytes);
        self.scales[kind] = scale;
        extend_range_(&self.seen.get(kind)?, rows)
    }

    /// Waits for the device. All ranks make the call.
    ///
    /// # Errors
    /// When a value lay outside 0 to 1.
    pub(crate) fn check(&self, op: &str) -> Result<()> {
        let all = Tensor::zeros((self.group.world(), 2, 2), DType::F32, self.seen.device())?;
        self.group.all_gather_(&all, &self.seen)?;
        let seen = all.flatten_to(1)?.to_vec2::<f32>()?;
        let (mut least, mut most) = (f32::INFINITY, f32::NEG_INFINITY);
        for (range, scale) in
            seen.iter().zip(self.scales.into_iter().cycle()).filter(|(range, _)| range[0] <= range[1])
        {
            (least, most) = (least.min(range[0] * scale), most.max(range[1] * scale));
        }
        if least <= most && !in_unit_interval(least, most) {
            candle::bail!(
                "{op}: prepared rows must lie between 0 and 1 for {}, got {least} to {most}; scale them to that range in the preparation, \
                 or use {}",
                self.needs,
                self.instead
            )
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_floats_are_held_to_their_own_scales() -> Result<()> {
        let cpu = Device::Cpu;
        let range = || UnitRange::new("targets", "others", &cpu);
        let bytes = Tensor::new(&[[0u8, 255]], &cpu)?;
        let mut fine = range()?;
        fine.check("Op")?;
        fine.see(&bytes, 1. / 255.)?;
        fine.see(&Tensor::new(&[[0f32, 2., f32::NAN]], &cpu)?, 0.5)?;
        fine.check("Op")?;
        for (rows, scale, got) in [
            (bytes, 1f32, "0 to 255"),
            (Tensor::new(&[[-1f32, 0.5]], &cpu)?, 2., "-2 to 1"),
            (Tensor::new(&[[0f32, 1.1]], &cpu)?, 1., "0 to 1.1"),
        ] {
            let mut range = range()?;
            range.see(&rows, scale)?;
            let refused = range.check("Op").map_err(|e| e.to_string());
            let want = format!(
                "Op: prepared rows must lie between 0 and 1 for targets, got {got}; scale them to that range in the preparation, or use others"
            );
            assert_eq!(
                refused.as_ref().map_err(|e| e.lines().next()),
                Err(Some(&want[..])).as_ref().map_err(|e| *e)
            );
        }
        Ok(())
    }
}
