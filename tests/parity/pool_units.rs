//! Units with probabilistic max-pooling: equal to the reference, and the same bits on every device.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{
    Draws, Philox, PoolShape, PoolSide, UnitPlanes, normal, pool_units_, pool_units_reference,
};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const PLACE: Philox = Philox { seed: 12, stream: 23, offset: u64::MAX - 5 };
/// Maps below, at and above a warp, blocks of one to five places, one map, and more blocks than one wave of threads.
const SHAPES: [(usize, PoolShape); 7] = [
    (1, PoolShape { height: 1, width: 1, n_maps: 1, pool: 1 }),
    (3, PoolShape { height: 4, width: 6, n_maps: 1, pool: 2 }),
    (2, PoolShape { height: 6, width: 4, n_maps: 31, pool: 2 }),
    (5, PoolShape { height: 9, width: 6, n_maps: 32, pool: 3 }),
    (2, PoolShape { height: 10, width: 15, n_maps: 33, pool: 5 }),
    (1, PoolShape { height: 7, width: 7, n_maps: 5, pool: 7 }),
    (9, PoolShape { height: 62, width: 66, n_maps: 70, pool: 2 }),
];
/// Sums of up to 49 exponentials of an error of one unit in the last place each, and a quotient.
const ATOL: f32 = 4e-6;

#[test]
fn pooled_units_match_the_reference_and_the_bits_of_the_cpu() -> Result<()> {
    for (batch, shape) in SHAPES {
        let pre = (normal((batch, shape.n_units()), &Device::Cpu, Philox::new(2, 0))? * 2.)?;
        let bias = normal(shape.n_maps, &Device::Cpu, Philox::new(2, 1))?;
        for philox in [None, Some(PLACE)] {
            let want = pool_units_reference(&pre, &bias, shape, philox.map(|p| p.advanced(28)))?;
            let [mean, sample, pooled_mean, pooled_sample] = &want;
            let sides = [
                (PoolSide::Detection, shape.n_units(), mean, sample),
                (PoolSide::Pooled, shape.n_pooled(), pooled_mean, pooled_sample),
            ];
            for (side, n, mean, sample) in sides {
                for (dtype, low) in
                    [(DType::F32, None), (DType::BF16, None), (DType::F16, None), (DType::F16, Some(3))]
                {
                    let out = UnitPlanes { mean: Some(0), mean_scale: -1., sample: Some(2), low };
                    let mut on_cpu: Option<Tensor> = None;
                    for device in devices()? {
                        let what = format!(
                            "{side:?} of {batch} {shape:?} {philox:?} {dtype:?} on {:?}",
                            device.location()
                        );
                        let counter = Tensor::new(&[7i64], &device)?;
                        let draws =
                            philox.map_or(Draws::Mode, |philox| Draws::Counter { philox, counter: &counter });
                        let planes = Tensor::full(7f32, (6, batch, n), &device)?.to_dtype(dtype)?;
                        let (pre, bias) = (pre.to_device(&device)?, bias.to_device(&device)?);
                        pool_units_(&planes, &pre, &bias, shape, side, out, draws)?;
                        let planes = planes.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
                        let Some(cpu) = &on_cpu else {
                            if dtype == DType::F32 {
                                assert_close(&what, &planes.get(0)?.neg()?, mean, 0., ATOL)?;
                                // A draw within rounding of a border may go either way: at most one of a million.
                                let differ =
                                    (planes.get(2)? - sample)?.abs()?.sum_all()?.to_scalar::<f32>()?;
                                assert!(differ <= 2., "{what}: {differ} units differ");
                            }
                            on_cpu = Some(planes);
                            continue;
                        };
                        assert_same_bits(&what, &planes, cpu)?;
                    }
                }
            }
        }
    }
    Ok(())
}
