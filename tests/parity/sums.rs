//! Column sums: close to the exact ones, and the same bits on every device.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::{column_sums_, column_sums_reference};
use chandlery_ops::core::normal;
use chandlery_tests::{assert_close, assert_same_bits, devices};

fn sums_of(x: &Tensor) -> Result<Tensor> {
    let sums = Tensor::full(f32::NAN, x.dim(1)?, x.device())?;
    column_sums_(&sums, x)?;
    Ok(sums)
}

#[test]
fn column_sums_match_the_reference_and_the_bits_of_the_cpu() -> Result<()> {
    for device in devices()? {
        // Rows around the 32 lanes, columns around the 32 units of a block; 200 × 500 and 784 are
        // layers of TARGETS.
        for (rows, n_units) in
            [(1, 1), (2, 31), (31, 33), (32, 32), (33, 64), (63, 65), (65, 5), (200, 500), (1025, 784)]
        {
            for dtype in [DType::F32, DType::BF16] {
                let what = format!("column_sums_ [{rows}, {n_units}] {dtype:?} on {:?}", device.location());
                let x = normal((rows, n_units), &Device::Cpu, Philox::new(4, 0))?.to_dtype(dtype)?;
                let on_device = sums_of(&x.to_device(&device)?)?.to_device(&Device::Cpu)?;
                assert_same_bits(&what, &on_device, &sums_of(&x)?)?;
                // A sum of r normal draws is about √r; each of r/32 + 5 additions rounds by 2^-24
                // of that.
                let atol = (rows as f32).sqrt() * (rows as f32 / 32. + 5.) / 16_777_216.;
                assert_close(
                    &what,
                    &on_device,
                    &column_sums_reference(&x)?,
                    0.,
                    atol.max(f32::MIN_POSITIVE),
                )?;
            }
        }
    }
    Ok(())
}

#[test]
fn column_sums_of_planes_within_a_buffer() -> Result<()> {
    for device in devices()? {
        let planes = normal((3, 7, 13), &device, Philox::new(4, 0))?;
        let sums = Tensor::zeros((4, 13), DType::F32, &device)?;
        column_sums_(&sums.get(2)?, &planes.narrow(0, 1, 2)?.flatten(0, 1)?)?;
        let want = sums_of(&planes.narrow(0, 1, 2)?.contiguous()?.flatten(0, 1)?)?;
        assert_same_bits("sums of planes 1 and 2", &sums.get(2)?, &want)?;
        let others = [0, 1, 3].map(|i| sums.get(i));
        for other in others {
            assert_same_bits("the other rows", &other?, &Tensor::zeros(13, DType::F32, &device)?)?;
        }
    }
    Ok(())
}
