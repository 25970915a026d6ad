//! The range of values is that of a plain loop, on every device.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::extend_range_;
use chandlery_ops::core::{normal, uniform};
use chandlery_tests::devices;

#[test]
fn the_range_is_that_of_all_values_seen() -> Result<()> {
    let cpu = Device::Cpu;
    for device in devices()? {
        // Below, at and above a warp, a block and the values of all blocks.
        for n in [0, 1, 31, 33, 256, 4096, 4097, 1 << 17, 5_000_003] {
            let range = Tensor::new(&[f32::INFINITY, f32::NEG_INFINITY], &device)?;
            let mut want = [f32::INFINITY, f32::NEG_INFINITY];
            // Ranges that lie above 0, below 0 and about it, so that each bound is met by values of
            // both signs.
            for (i, shift) in [7., -9., 0.].into_iter().enumerate() {
                let mut x = (normal(n, &cpu, Philox::new(5, i as u64))? + shift)?.to_vec1::<f32>()?;
                x.iter_mut().step_by(1000).for_each(|x| *x = f32::NAN);
                for &x in &x {
                    want = [want[0].min(x), want[1].max(x)];
                }
                extend_range_(&range, &Tensor::new(x, &device)?)?;
                assert_eq!(
                    range.to_vec1::<f32>()?,
                    want,
                    "{n} values, shift {shift}, on {:?}",
                    device.location()
                );
            }
        }
        let bytes = (uniform(10_000, &cpu, Philox::new(5, 9))? * 200.)?.to_dtype(DType::U8)?;
        let want: [f32; 2] =
            [bytes.min_all()?.to_scalar::<u8>()?.into(), bytes.max_all()?.to_scalar::<u8>()?.into()];
        let range = Tensor::new(&[f32::INFINITY, f32::NEG_INFINITY], &device)?;
        extend_range_(&range, &bytes.to_device(&device)?)?;
        assert_eq!(range.to_vec1::<f32>()?, want);
    }
    Ok(())
}

/// Values are read by four where they begin on as many, and those before and behind them alone.
#[test]
fn a_value_at_any_place_of_any_view_widens_the_range() -> Result<()> {
    for device in devices()? {
        for (first, n) in (0..5).flat_map(|first| [1, 2, 3, 4, 5, 9, 11].map(|n| (first, n))) {
            for place in first..first + n {
                // Values outside the view lie further out.
                let mut x = vec![9f32; first + n + 4];
                x[first..first + n].fill(5.);
                x[place] = 6.;
                let x = Tensor::new(x, &Device::Cpu)?;
                for x in [x.to_dtype(DType::U8)?, x] {
                    let range = Tensor::new(&[f32::INFINITY, f32::NEG_INFINITY], &device)?;
                    extend_range_(&range, &x.to_device(&device)?.narrow(0, first, n)?)?;
                    let least = if n == 1 { 6. } else { 5. };
                    let what = format!("{:?}, {first}, {n}, {place} on {:?}", x.dtype(), device.location());
                    assert_eq!(range.to_vec1::<f32>()?, [least, 6.], "{what}");
                }
            }
        }
    }
    Ok(())
}
