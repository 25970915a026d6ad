//! Units with probabilistic max-pooling: equal to the reference, and the same bits on every device.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{Draws, normal};
use chandlery_ops::images::{
    PoolShape, PoolSide, block_means_, block_means_reference, pool_backward_, pool_backward_reference,
    pool_units_, pool_units_reference, spread_blocks_, spread_blocks_reference,
};
use chandlery_ops::layers::UnitPlanes;
use chandlery_tests::{assert_close, assert_same_bits, devices};

const PLACE: Philox = Philox { seed: 12, stream: 23, offset: u64::MAX - 5 };
/// Maps below, at and above a warp, blocks of one to five places, one map, and more blocks than one
/// wave of threads.
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
                                // A draw within rounding of a border may go either way: at most one
                                // of a million.
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

#[test]
fn derivatives_through_pooled_units_match_the_reference_and_the_bits_of_the_cpu() -> Result<()> {
    for (batch, shape) in SHAPES {
        let pre = (normal((batch, shape.n_units()), &Device::Cpu, Philox::new(3, 0))? * 2.)?;
        let bias = normal(shape.n_maps, &Device::Cpu, Philox::new(3, 1))?;
        let delta = normal((batch, shape.n_pooled()), &Device::Cpu, Philox::new(3, 2))?;
        let [mean, _, pooled, _] = pool_units_reference(&pre, &bias, shape, None)?;
        let want = pool_backward_reference(&mean, &pooled, &delta, shape)?;
        let mut on_cpu: Option<Tensor> = None;
        for device in devices()? {
            let what = format!("{batch} {shape:?} on {:?}", device.location());
            let got = pre.to_device(&device)?.copy()?;
            pool_backward_(&got, &bias.to_device(&device)?, &delta.to_device(&device)?, shape)?;
            let got = got.to_device(&Device::Cpu)?;
            match &on_cpu {
                Some(cpu) => assert_same_bits(&what, &got, cpu)?,
                None => {
                    // Probabilities are within ATOL, and normal numbers reach 6.
                    assert_close(&what, &got, &want, 0., 6. * ATOL)?;
                    on_cpu = Some(got);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn means_of_blocks_and_their_adjoint_match_the_reference_and_the_bits_of_the_cpu() -> Result<()> {
    for (batch, shape) in SHAPES {
        let units = normal((batch, shape.n_units()), &Device::Cpu, Philox::new(4, 0))?;
        let pooled = normal((batch, shape.n_pooled()), &Device::Cpu, Philox::new(4, 1))?;
        let mut on_cpu: Option<[Tensor; 2]> = None;
        for device in devices()? {
            let what = format!("{batch} {shape:?} on {:?}", device.location());
            let (means, spread) = (pooled.to_device(&device)?.copy()?, units.to_device(&device)?.copy()?);
            block_means_(&means, &units.to_device(&device)?, shape)?;
            spread_blocks_(&spread, &pooled.to_device(&device)?, shape)?;
            let got = [means.to_device(&Device::Cpu)?, spread.to_device(&Device::Cpu)?];
            let Some(cpu) = &on_cpu else {
                // Sums of up to 49 numbers.
                assert_close(&what, &got[0], &block_means_reference(&units, shape)?, 0., 1e-6)?;
                assert_close(&what, &got[1], &spread_blocks_reference(&pooled, shape)?, 2e-7, 0.)?;
                on_cpu = Some(got);
                continue;
            };
            got.iter().zip(cpu).try_for_each(|(got, cpu)| assert_same_bits(&what, got, cpu))?;
        }
    }
    Ok(())
}
