//! Products of f32 numbers in two parts: the bits of the CPU where they are made, and the precision
//! of f32 in products, whatever the range of a line.
use candle::{DType, Device, Result, Tensor};
use chandlery::feedforward::{
    Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer, Optimizer,
};
use chandlery::schedule::Schedule;
use chandlery::{MinibatchTrainer, Model, Trainer};
use chandlery_ops::arrays::{split_columns_, split_rows_};
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::layers::{
    Factors, gemm_, product_of_split_, product_of_split_reference, split_products_are_faster,
    warpgroups_multiply,
};
use chandlery_ops::{Philox, Precision};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;

/// Numbers whose rows have ranges of their own, from 1e-5 to 1e5, columns less, a row of zeros, and
/// single zeros.
fn numbers(rows: usize, cols: usize, stream: u64) -> Result<Tensor> {
    let x = normal((rows, cols), &CPU, Philox::new(90, stream))?;
    let range = |n: usize, seed, width: f64| -> Result<Tensor> {
        ((uniform(n, &CPU, Philox::new(91, stream + seed))? - 0.5)? * width)?.exp()
    };
    let x = x.broadcast_mul(&range(rows, 0, 24.)?.unsqueeze(1)?)?.broadcast_mul(&range(cols, 100, 6.)?)?;
    let kept = uniform((rows, cols), &CPU, Philox::new(92, stream))?.ge(0.1)?;
    let rest = Tensor::arange(0u32, rows as u32, &CPU)?.ne(rows as u32 / 2)?.unsqueeze(1)?;
    x * kept.to_dtype(DType::F32)?.broadcast_mul(&rest.to_dtype(DType::F32)?)?
}

/// The rows or columns of `x` in parts, with so many lines and numbers more, and their scales.
fn split(
    x: &Tensor,
    factors: Option<&Tensor>,
    turned: bool,
    more: [usize; 2],
    device: &Device,
) -> Result<[Tensor; 2]> {
    let (rows, cols) = x.dims2()?;
    let (lines, width) = if turned { (cols, rows) } else { (rows, cols) };
    let parts = Tensor::ones((2, lines + more[0], width + more[1]), DType::F16, device)?;
    let scales = Tensor::ones(lines + more[0], DType::F32, device)?;
    let factors = factors.map(|factors| factors.to_device(device)).transpose()?;
    let op = if turned { split_columns_ } else { split_rows_ };
    op(&parts, &scales, &x.to_device(device)?, factors.as_ref())?;
    Ok([parts, scales])
}

#[test]
fn lines_in_parts_have_the_bits_of_the_cpu() -> Result<()> {
    for device in devices()? {
        let sizes = [(1, 1), (3, 5), (8, 8), (33, 130), (193, 77), (5, 1100), (1030, 9), (700, 2056)];
        for (rows, cols) in sizes {
            let x = numbers(rows, cols, 0)?;
            for turned in [false, true] {
                let len = if turned { rows } else { cols };
                let factors = split(&numbers(len, 7, 1)?, None, false, [0, 0], &CPU)?[1].clone();
                for factors in [None, Some(&factors)] {
                    for more in [[0, 0], [3, 5]] {
                        let what = format!("{rows}x{cols}, turned {turned}, {more:?} more");
                        let got = split(&x, factors, turned, more, &device)?;
                        let want = split(&x, factors, turned, more, &CPU)?;
                        for (got, want) in got.iter().zip(&want) {
                            let plain = |t: &Tensor| t.to_device(&CPU)?.to_dtype(DType::F32);
                            assert_same_bits(&what, &plain(got)?, &plain(want)?)?;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// The largest error as a share of its bound.
fn largest_share(got: &Tensor, want: &Tensor, bounds: &Tensor) -> Result<f64> {
    // A bound of 0 is that of a product with a line of zeros.
    ((got.to_dtype(DType::F64)? - want)?.abs()? / (bounds + 1e-300)?)?.max_all()?.to_scalar()
}

/// The three products of a layer, of `[rows, n_in]`, `[n_out, n_in]` and `[rows, n_out]` numbers,
/// split on `device`; each in f64, and what numbers in two parts may be off: 3 times 2^-23 of the
/// sizes of all terms, and in each of these half the distance of the smallest f16 numbers, 2^-25,
/// times at most 2^15, of either operand.
fn products([x, weight, delta]: [&Tensor; 3], device: &Device) -> Result<Vec<(&'static str, [Tensor; 3])>> {
    let rows = x.dim(0)?;
    let deep = rows.next_multiple_of(8) - rows;
    let [w, of_w] = split(weight, None, false, [0, 0], device)?;
    let [in_x, of_x] = split(x, None, false, [deep, 0], device)?;
    let own = of_x.narrow(0, 0, rows)?;
    let [d, of_d] = split(delta, Some(&of_w), false, [0, 0], device)?;
    let [turned, of_turned] = split(delta, Some(&own), true, [0, deep], device)?;
    let wide = |t: &Tensor| t.to_dtype(DType::F64);
    let (x, weight, delta) = (wide(x)?, wide(weight)?, wide(delta)?);
    let in_x_own = in_x.narrow(1, 0, rows)?;
    let cases = [
        ("forward", (&in_x_own, &own), (&w.t()?, Some(&of_w)), (&x, &weight.t()?)),
        ("backward", (&d, &of_d), (&w, None), (&delta, &weight)),
        ("gradient", (&turned, &of_turned), (&in_x, None), (&delta.t()?, &x)),
    ];
    let run = |(name, a, b, in_f64)| Ok((name, product(a, b, in_f64, name, device)?));
    cases.into_iter().map(run).collect()
}

/// One of them, of both operands with their scales.
fn product(
    a: (&Tensor, &Tensor),
    b: (&Tensor, Option<&Tensor>),
    (wide_a, wide_b): (&Tensor, &Tensor),
    name: &str,
    device: &Device,
) -> Result<[Tensor; 3]> {
    let wide = |t: &Tensor| t.to_dtype(DType::F64);
    let shape = (wide_a.dim(0)?, wide_b.dim(1)?);
    let c = Tensor::ones(shape, DType::F32, device)?;
    product_of_split_(&c, a, b)?;
    let reference = product_of_split_reference(a, b)?.to_device(&CPU)?;
    let (wide_a, wide_b) = (wide_a.contiguous()?, wide_b.contiguous()?);
    let sizes = wide_a.abs()?.matmul(&wide_b.abs()?)?;
    let least = (wide(a.1)?.to_device(&CPU)? * (wide_a.dim(1)? as f64 * 2f64.powi(-9)))?.unsqueeze(1)?;
    let least = match b.1 {
        Some(cols) => least.broadcast_mul(&wide(cols)?.to_device(&CPU)?)?,
        None => least.broadcast_as(sizes.shape())?.contiguous()?,
    };
    let bounds = ((sizes * (3. * 2f64.powi(-23)))? + least)?;
    let want = wide_a.matmul(&wide_b)?;
    let off = largest_share(&reference, &want, &bounds)?;
    assert!(off <= 1., "{name}: parts are {off} times the bound off");
    Ok([c.to_device(&CPU)?, want, bounds])
}

#[test]
fn products_of_lines_of_any_range_are_within_their_bounds() -> Result<()> {
    for device in devices()? {
        // Every form of the kernel has its turn (its unit test knows sizes), rows that are no
        // multiple of 8, and sums of thousands.
        let sizes = [
            (8, 136, 72),
            (193, 24, 40),
            (500, 2056, 72),
            (200, 12_808, 72),
            (56, 4328, 72),
            (8, 25_000, 72),
            (1, 8, 8),
            (1001, 504, 784),
            (2500, 64, 136),
        ];
        for (rows, n_out, n_in) in chandlery_tests::sizes_here(&sizes, |(m, n, k)| 9 * m * n * k) {
            let (x, weight, delta) =
                (numbers(rows, n_in, 2)?, numbers(n_out, n_in, 3)?, numbers(rows, n_out, 4)?);
            for (name, [got, want, bounds]) in products([&x, &weight, &delta], &device)? {
                // Roundings of sums, as of products of f32 numbers, are as much again.
                let off = largest_share(&got, &want, &bounds)?;
                assert!(off <= 2., "{name} of {rows}, {n_out}, {n_in}: {off:.3e} times the bound off");
            }
        }
    }
    Ok(())
}

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn errors_are_at_most_those_of_products_of_f32_numbers() -> Result<()> {
    for device in devices()?.into_iter().filter(Device::is_cuda) {
        for (rows, n_out, n_in) in [(192, 1024, 576), (1000, 504, 784), (4096, 1024, 512), (64, 512, 4096)] {
            let of = |rows, cols, stream| normal((rows, cols), &CPU, Philox::new(93, stream));
            let (x, weight, delta) = (of(rows, n_in, 0)?, of(n_out, n_in, 1)?, of(rows, n_out, 2)?);
            let operands = [
                (x.clone(), weight.t()?),
                (delta.clone(), weight.clone()),
                (delta.t()?.contiguous()?, x.clone()),
            ];
            for ((name, [got, want, _]), (a, b)) in
                products([&x, &weight, &delta], &device)?.into_iter().zip(operands)
            {
                let plain = Tensor::zeros(got.shape(), DType::F32, &device)?;
                let (a, b) = (a.contiguous()?.to_device(&device)?, b.contiguous()?.to_device(&device)?);
                gemm_(&plain, &a, &b, Factors::OVERWRITE, Precision::F32)?;
                let error = |t: &Tensor| {
                    let off = (t.to_device(&CPU)?.to_dtype(DType::F64)? - &want)?;
                    off.sqr()?.mean_all()?.sqrt()?.to_scalar::<f64>()
                };
                let (ours, theirs) = (error(&got)?, error(&plain)?);
                assert!(
                    ours <= 1.1 * theirs,
                    "{name} of {rows}, {n_out}, {n_in}: {ours:.3e}, f32 {theirs:.3e}"
                );
            }
        }
    }
    Ok(())
}

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn a_network_that_multiplies_in_parts_learns_as_one_that_does_not() -> Result<()> {
    let widths = [1024, 1024, 512, 10];
    let rows = 2052;
    let network = Feedforward::init(FeedforwardConfig::classifier(&widths), Philox::new(94, 0), &CPU)?;
    let training = FeedforwardTrainConfig {
        batch: rows,
        optimizer: Optimizer::Sgd,
        learning_rate: Schedule::Constant(0.1),
        ..FeedforwardTrainConfig::default()
    };
    let x = uniform((rows, widths[0]), &CPU, Philox::new(94, 1))?;
    let labels = Tensor::from_vec((0..rows as u32).map(|i| i * 7 % 10).collect::<Vec<_>>(), rows, &CPU)?;
    let train = |device: &Device| -> Result<Feedforward> {
        let mut trainer =
            FeedforwardTrainer::new(&network.to(DType::F32, device)?, training.clone(), Philox::new(94, 2))?;
        trainer.begin_epoch(0)?;
        for _ in 0..4 {
            trainer.step(&x.to_device(device)?, Some(&labels.to_device(device)?))?;
        }
        trainer.metrics()?;
        trainer.model()?.to(DType::F32, &CPU)
    };
    let mut want = None;
    for device in devices()?.into_iter().filter(Device::is_cuda) {
        let splits = split_products_are_faster(&device, rows, widths[1], widths[0])?;
        assert_eq!(splits, warpgroups_multiply(&device), "what the test is for");
        let want = match &mut want {
            Some(want) => want,
            None => want.insert(train(&CPU)?),
        };
        let got = train(&device)?;
        for ((part, got), (_, want)) in got.tensors().into_iter().zip(want.tensors()) {
            assert_close(&format!("{part}, in parts: {splits}"), &got, &want, 1e-4, 2e-6)?;
        }
    }
    Ok(())
}
