//! Corrupted rows: the same bits on every device, for any launch and any cut by rows.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::split_into_;
use chandlery_ops::core::{Draws, advance_, uniform};
use chandlery_ops::layers::{Corruption, corrupt, corrupt_, corrupt_minibatches_};
use chandlery_tests::{assert_same_bits, devices};

const PLACE: Philox = Philox { seed: 0x1234_5678_9abc_def0, stream: u64::MAX, offset: u64::MAX - 2 };
const LAWS: [Corruption; 5] = [
    Corruption::None,
    Corruption::SaltAndPepper(0.3),
    Corruption::Masking(0.25),
    Corruption::Gaussian(0.5),
    Corruption::Flip(0.3),
];

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn corrupted_rows_are_the_same_bits_on_every_device_at_any_size() -> Result<()> {
    // Around a block of Philox, a warp, a thread block, and beyond a grid of 4096 blocks of 256
    // threads of 4 elements.
    for device in devices()? {
        for n in [1, 2, 3, 4, 5, 31, 33, 127, 129, 1023, 1025, 100_003, 4096 * 256 * 4 + 4097] {
            let x = uniform(n, &Device::Cpu, PLACE.advanced(n))?;
            for law in LAWS {
                let got = corrupt(&x.to_device(&device)?, law, PLACE)?;
                let what = format!("{law} n={n} on {:?}", device.location());
                assert_same_bits(&what, &got, &corrupt(&x, law, PLACE)?)?;
            }
        }
    }
    Ok(())
}

#[test]
fn rows_are_corrupted_alone_from_any_element_and_nothing_beside_them() -> Result<()> {
    for device in devices()? {
        for (rows, width) in [(7, 5), (9, 31), (40, 785)] {
            let x = uniform((rows, width), &Device::Cpu, PLACE.advanced(1))?;
            for law in LAWS {
                let want = corrupt(&x, law, PLACE)?;
                for row in [0, 1, rows - 1] {
                    let buffer = Tensor::full(9f32, (rows, width), &device)?;
                    let alone = x.narrow(0, row, 1)?.to_device(&device)?;
                    corrupt_(&buffer.narrow(0, row, 1)?, &alone, law, Draws::At(PLACE), row * width)?;
                    let nines = |n: usize| Tensor::full(9f32, (n, width), &Device::Cpu);
                    let (above, below) = (nines(row)?, nines(rows - row - 1)?);
                    let want = Tensor::cat(&[&above, &want.narrow(0, row, 1)?, &below], 0)?;
                    let what = format!("{law}, row {row} of {rows}×{width} on {:?}", device.location());
                    assert_same_bits(&what, &buffer, &want)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_counter_on_the_device_moves_the_noise() -> Result<()> {
    for device in devices()? {
        let x = uniform((13, 77), &device, PLACE)?;
        let (out, counter) = (x.zeros_like()?, Tensor::new(&[-3i64], &device)?);
        for step in 0..3u64 {
            let draws = Draws::Counter { philox: PLACE, counter: &counter };
            corrupt_(&out, &x, LAWS[3], draws, 0)?;
            let at = Philox { offset: PLACE.offset.wrapping_sub(3).wrapping_add(251 * step), ..PLACE };
            let want = corrupt(&x.to_device(&Device::Cpu)?, LAWS[3], at)?;
            assert_same_bits(&format!("step {step} on {:?}", device.location()), &out, &want)?;
            advance_(&counter, 251)?;
        }
    }
    Ok(())
}

#[test]
fn parts_of_corrupted_rows_are_the_sum_and_its_rounding_or_the_rounded_number() -> Result<()> {
    for device in devices()? {
        for (rows, width) in [(1, 1), (7, 5), (40, 785)] {
            let x = uniform((rows, width), &Device::Cpu, PLACE)?;
            for (law, (parts, dtype)) in LAWS.into_iter().flat_map(|law| KINDS.map(|kind| (law, kind))) {
                let nines = |device| Tensor::full(9f32, (parts, 3, rows, width), device)?.to_dtype(dtype);
                let all = nines(&device)?;
                let out = all.narrow(1, 1, 1)?.squeeze(1)?;
                corrupt_(&out, &x.to_device(&device)?, law, Draws::At(PLACE), 0)?;
                let nine = nines(&Device::Cpu)?.narrow(1, 0, 1)?;
                let noisy = in_parts(&corrupt(&x, law, PLACE)?, parts, dtype)?.unsqueeze(1)?;
                let want = Tensor::cat(&[&nine, &noisy, &nine], 1)?;
                let what = format!("{law} {rows}×{width} {dtype:?} on {:?}", device.location());
                assert_same_bits(&what, &all, &want)?;
            }
        }
    }
    Ok(())
}

/// Numbers of 16 bits that rows are stored as: in how many parts, and their type.
const KINDS: [(usize, DType); 3] = [(2, DType::F16), (1, DType::F16), (1, DType::BF16)];

/// `[parts, ..x]`: two parts, or one of `dtype`.
fn in_parts(x: &Tensor, parts: usize, dtype: DType) -> Result<Tensor> {
    if parts == 1 {
        return x.to_dtype(dtype)?.unsqueeze(0);
    }
    let shape: Vec<usize> = [2].iter().chain(x.dims()).copied().collect();
    let split = Tensor::zeros(shape, DType::F16, &Device::Cpu)?;
    split_into_(&split, x, 1.)?;
    Ok(split)
}

#[test]
fn columns_of_wider_rows_are_corrupted_as_on_the_cpu() -> Result<()> {
    for device in devices()? {
        for (n, rows, width, wide) in
            [(1, 7, 5, 8), (3, 4, 12, 16), (2, 40, 785, 792), (3, 1, 6, 9), (2, 33, 100, 104)]
        {
            let x = uniform((n, rows, wide), &Device::Cpu, PLACE)?;
            for (law, (parts, dtype)) in LAWS
                .into_iter()
                .flat_map(|law| KINDS.into_iter().chain([(0, DType::F32)]).map(move |kind| (law, kind)))
            {
                let corrupted = |device: &Device| -> Result<Tensor> {
                    let own = x.to_device(device)?.narrow(2, 0, width)?;
                    if parts == 0 {
                        let all = Tensor::full(9f32, (n, rows, wide), device)?;
                        corrupt_(&all.narrow(2, 0, width)?, &own, law, Draws::At(PLACE), 3)?;
                        return Ok(all);
                    }
                    let all = Tensor::full(9f32, (parts, n, 2, rows, wide), device)?.to_dtype(dtype)?;
                    let out = all.narrow(2, 1, 1)?.squeeze(2)?.narrow(3, 0, width)?;
                    corrupt_(&out, &own, law, Draws::At(PLACE), 0)?;
                    Ok(all)
                };
                let what = format!("{law} {n}×{rows}×{width} of {wide} {dtype:?} on {:?}", device.location());
                assert_same_bits(&what, &corrupted(&device)?, &corrupted(&Device::Cpu)?)?;
            }
        }
    }
    Ok(())
}

#[test]
fn minibatches_are_corrupted_beside_other_planes_as_in_one_piece() -> Result<()> {
    for device in devices()? {
        for (n, rows, width) in [(1, 3, 5), (3, 7, 5), (5, 8, 12), (2, 40, 785)] {
            let x = uniform((n, rows, width), &Device::Cpu, PLACE)?;
            for (law, (parts, dtype)) in LAWS.into_iter().flat_map(|law| KINDS.map(|kind| (law, kind))) {
                let all = Tensor::full(9f32, (parts, n, 2, rows, width), &device)?.to_dtype(dtype)?;
                let out = all.narrow(2, 1, 1)?.squeeze(2)?;
                corrupt_(&out, &x.to_device(&device)?, law, Draws::At(PLACE), 0)?;
                let noisy = in_parts(&corrupt(&x, law, PLACE)?, parts, dtype)?;
                let nines = Tensor::full(9f32, (parts, n, rows, width), &Device::Cpu)?.to_dtype(dtype)?;
                let want = Tensor::stack(&[&nines, &noisy], 2)?;
                let what = format!("{law} {n}×{rows}×{width} {dtype:?} on {:?}", device.location());
                assert_same_bits(&what, &all, &want)?;
            }
        }
    }
    Ok(())
}

#[test]
fn minibatches_of_any_size_are_corrupted_at_once_as_one_after_the_other() -> Result<()> {
    // Below, at and above the 31 fours of a warp; lines of which the last four are one to four
    // columns; minibatches that end at each word of a block of Philox.
    let sizes = [
        (1, 3, 5, 5),
        (3, 3, 5, 5),
        (3, 7, 5, 8),
        (4, 5, 8, 8),
        (2, 1, 123, 124),
        (3, 2, 125, 128),
        (2, 3, 126, 128),
        (3, 1, 1, 8),
        (5, 33, 101, 104),
        (3, 193, 785, 792),
    ];
    for device in devices()? {
        for (n, rows, width, wide) in sizes {
            let x = uniform((n, rows, wide), &Device::Cpu, PLACE)?;
            let kinds = || KINDS.into_iter().chain([(0, DType::F32)]);
            for (law, (parts, dtype)) in LAWS.into_iter().flat_map(|law| kinds().map(move |kind| (law, kind)))
            {
                // Beside other planes, where there are parts.
                let all = match parts {
                    0 => Tensor::full(9f32, (n, rows, wide), &device)?,
                    _ => Tensor::full(9f32, (parts, n, 2, rows, wide), &device)?.to_dtype(dtype)?,
                };
                let out = match parts {
                    0 => all.narrow(2, 0, width)?,
                    _ => all.narrow(2, 1, 1)?.squeeze(2)?.narrow(3, 0, width)?,
                };
                let own = x.to_device(&device)?.narrow(2, 0, width)?;
                corrupt_minibatches_(&out, &own, law, Draws::At(PLACE))?;
                let mut want = Vec::with_capacity(n);
                for i in 0..n {
                    let offset = PLACE.offset.wrapping_add((i * (rows * width).div_ceil(4)) as u64);
                    let own = x.get(i)?.narrow(1, 0, width)?.contiguous()?;
                    let noisy = corrupt(&own, law, Philox { offset, ..PLACE })?;
                    let noisy = if parts == 0 { noisy } else { in_parts(&noisy, parts, dtype)? };
                    want.push(with_nines(&noisy, wide)?);
                }
                let dim = if parts == 0 { 0 } else { 1 };
                let want = Tensor::stack(&want, dim)?;
                let want = match parts {
                    0 => want,
                    _ => Tensor::stack(&[&(want.ones_like()? * 9.)?, &want], 2)?,
                };
                let what = format!("{law} {n}×{rows}×{width} of {wide} {dtype:?} on {:?}", device.location());
                assert_same_bits(&what, &all, &want)?;
            }
        }
    }
    Ok(())
}

/// `x` with columns of 9 up to so many.
fn with_nines(x: &Tensor, wide: usize) -> Result<Tensor> {
    let last = x.rank() - 1;
    let mut shape = x.dims().to_vec();
    match wide - shape[last] {
        0 => Ok(x.clone()),
        more => {
            shape[last] = more;
            Tensor::cat(&[x, &Tensor::full(9f32, shape, x.device())?.to_dtype(x.dtype())?], last)
        }
    }
}
