//! Softmax groups: equal to the reference, and the same bits on every device.
use candle::{Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{Draws, normal};
use chandlery_ops::layers::{UnitPlanes, softmax_units_, softmax_units_reference};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const PLACE: Philox = Philox { seed: 11, stream: 22, offset: u64::MAX - 5 };
const BOTH: UnitPlanes = UnitPlanes { mean: Some(0), mean_scale: -1., sample: Some(2), low: None };
/// Rows and classes around a block of Philox, a warp, a block of threads, and more rows than one
/// wave.
const SHAPES: [(usize, usize); 8] =
    [(1, 1), (3, 2), (5, 10), (31, 3), (33, 31), (257, 10), (100, 257), (70_001, 5)];
/// Each of up to 257 sums and quotients of numbers below 1 is rounded once on both sides.
const ATOL: f32 = 2e-6;

#[test]
fn softmax_units_match_the_reference_and_the_bits_of_the_cpu() -> Result<()> {
    for (rows, classes) in SHAPES {
        let pre = (normal((rows, classes), &Device::Cpu, Philox::new(1, 0))? * 3.)?;
        let bias = normal(classes, &Device::Cpu, Philox::new(1, 1))?;
        for philox in [None, Some(PLACE)] {
            let mut on_cpu: Option<Tensor> = None;
            for device in devices()? {
                let (pre, bias) = (pre.to_device(&device)?, bias.to_device(&device)?);
                let what = format!("[{rows}, {classes}] {philox:?} on {:?}", device.location());
                let counter = Tensor::new(&[7i64], &device)?;
                let draws = philox.map_or(Draws::Mode, |philox| Draws::Counter { philox, counter: &counter });
                let planes = Tensor::full(7f32, (3, rows, classes), &device)?;
                softmax_units_(&planes, &pre, &bias, BOTH, draws)?;
                let moved = philox.map(|p| p.advanced(28));
                let (mean, sample) = softmax_units_reference(&pre, &bias, moved)?;
                assert_close(&what, &planes.get(0)?.neg()?, &mean, 0., ATOL)?;
                let planes = planes.to_device(&Device::Cpu)?;
                match &on_cpu {
                    // The reference's sums differ in the last bit, so a draw that falls on a border
                    // may go either way: at most one of a million.
                    None => {
                        let differ = (planes.get(2)? - sample)?.abs()?.sum_all()?.to_scalar::<f32>()?;
                        assert!(differ <= 2., "{what}: {} rows drew another class", differ / 2.);
                        on_cpu = Some(planes);
                    }
                    Some(cpu) => assert_same_bits(&what, &planes, cpu)?,
                }
            }
        }
    }
    Ok(())
}
