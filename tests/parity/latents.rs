//! Latents of sparse autoencoders: what is chosen is what a sort chooses, and gradients and steps
//! are those of dense products, on every device.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery::sparse_autoencoder::sae::{Kind, LossConfig, Sae, SaeConfig, SaeTrainConfig, SaeTrainer};
use chandlery::{MinibatchTrainer, Model, Trainer};
use chandlery_ops::Philox;
use chandlery_ops::codes::{
    AtomUses, CodeWidth, LatentGradients, LatentState, SparseCodes, active, active_reference,
    batch_threshold, batch_threshold_reference, batch_top_k, centred, code_dots, code_errors,
    code_errors_reference, latent_gradients, latent_step_, top_k, top_k_reference, use_sums,
};
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::layers::{AdamStep, Precision, adam_step_reference};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;

/// Rows, latents and how many are chosen: below, at and above groups of 64, the steps of a warp and
/// what lanes of maxima filter, all latents, more than shared memory holds, and rows to sample.
const SIZES: [(usize, usize, usize); 11] = [
    (1, 1, 1),
    (3, 63, 5),
    (5, 64, 64),
    (2, 65, 70),
    (7, 255, 4),
    (4, 256, 16),
    (9, 1025, 8),
    (33, 3072, 32),
    (3, 2056, 600),
    (2, 9000, 6000),
    (1100, 700, 8),
];

fn same(what: &str, got: &SparseCodes, want: &SparseCodes) -> Result<()> {
    let counts = |codes: &SparseCodes| codes.count.to_vec1::<u32>();
    assert_eq!(counts(got)?, counts(want)?, "{what}");
    let (got, want) = (got.to_dense()?, want.to_dense()?);
    assert_eq!(
        got.to_dtype(DType::F64)?.to_vec2::<f64>()?,
        want.to_dtype(DType::F64)?.to_vec2::<f64>()?,
        "{what}"
    );
    Ok(())
}

/// Pre-activations of few different values, so that many are equal.
fn coarse(m: usize, n: usize) -> Result<Tensor> {
    (normal((m, n), &CPU, Philox::new(2, 0))? * 4.)?.round()? / 4.
}

/// Pre-activations that rise along a row, so that every step of a search brings larger ones.
fn rising(m: usize, n: usize) -> Result<Tensor> {
    (Tensor::arange(0f32, (m * n) as f32, &CPU)?.reshape((m, n))? / 64.)?.to_dtype(DType::F32)
}

/// Pre-activations of which one row has all the largest.
fn uneven(m: usize, n: usize) -> Result<Tensor> {
    let scale = Tensor::arange(0f32, m as f32, &CPU)?.eq(0f32)?.to_dtype(DType::F32)?.affine(50., 1.)?;
    normal((m, n), &CPU, Philox::new(2, 1))?.broadcast_mul(&scale.unsqueeze(1)?)
}

/// Types of matrices, and of the values that go with them.
const TYPES: [DType; 3] = [DType::F32, DType::F64, DType::BF16];
fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { dtype } else { DType::F32 }
}

#[test]
fn the_largest_of_each_row_are_those_of_a_sort() -> Result<()> {
    for device in devices()? {
        for (m, n, k) in SIZES {
            for dtype in TYPES {
                for pre in [normal((m, n), &CPU, Philox::new(1, 0))?, coarse(m, n)?, rising(m, n)?] {
                    let what = format!("top_k {k} of [{m}, {n}] {dtype:?} on {:?}", device.location());
                    let pre = pre.to_dtype(dtype)?.to_device(&device)?;
                    let bias = (normal(n, &device, Philox::new(1, 1))? * 0.25)?.to_dtype(wide(dtype))?;
                    let got = top_k(&pre, &bias, k, None)?;
                    same(&what, &got, &top_k_reference(&pre, &bias, k, None)?)?;
                    let few: Vec<u32> = (0..n as u32).filter(|j| j % 3 == 0).collect();
                    let among = Tensor::new(few, &device)?;
                    let got = top_k(&pre, &bias, k, Some(&among))?;
                    same(&what, &got, &top_k_reference(&pre, &bias, k, Some(&among))?)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_largest_of_a_batch_are_above_the_threshold_of_a_sort() -> Result<()> {
    for device in devices()? {
        for (m, n, k) in SIZES {
            let all = [normal((m, n), &CPU, Philox::new(1, 0))?, coarse(m, n)?, rising(m, n)?, uneven(m, n)?];
            for (pre, dtype) in all.iter().flat_map(|pre| TYPES.map(|dtype| (pre, dtype))) {
                let what = format!("{k} a row of [{m}, {n}] {dtype:?} on {:?}", device.location());
                let pre = pre.to_dtype(dtype)?.to_device(&device)?;
                let of = |t: Tensor| t.to_dtype(wide(dtype));
                let bias = of((normal(n, &device, Philox::new(1, 1))? * 0.25)?)?;
                let cut = batch_threshold(&pre, &bias, k * m)?;
                assert_same_bits(&what, &cut, &batch_threshold_reference(&pre, &bias, k * m)?)?;
                let chosen = active(&pre, &bias, &cut, true)?;
                same(&what, &chosen, &active_reference(&pre, &bias, &cut, true)?)?;
                let (at_once, of_these) = batch_top_k(&pre, &bias, k * m)?;
                assert_same_bits(&what, &of_these, &cut)?;
                same(&what, &at_once, &chosen)?;
                let mut width = CodeWidth::default();
                let small = (&pre * 0.5)?;
                for (i, pre) in [&pre, &pre, &small, &pre, &pre].into_iter().enumerate() {
                    let (want, cut) = batch_top_k(pre, &bias, k * m)?;
                    let (codes, found) = width.batch_top_k(pre, &bias, k * m)?;
                    if width.fits()? {
                        same(&what, &codes, &want)?;
                        assert_same_bits(&what, &found, &cut)?;
                    } else {
                        assert!(i > 0, "{what}: a guess without a minibatch before");
                        same(&what, &width.batch_top_k(pre, &bias, k * m)?.0, &want)?;
                        assert!(width.fits()?, "{what}");
                    }
                }
                let bounds = of((uniform(n, &device, Philox::new(3, 1))? - 0.25)?)?;
                for or_equal in [false, true] {
                    let chosen = active(&pre, &bias, &bounds, or_equal)?;
                    same(&what, &chosen, &active_reference(&pre, &bias, &bounds, or_equal)?)?;
                }
                // Twice as many as before are above the lower bounds: the guess is too narrow.
                let mut width = CodeWidth::default();
                for (i, bound) in [&bounds, &bounds, &(&bounds - 4.)?, &bounds].into_iter().enumerate() {
                    let chosen = width.active(&pre, &bias, bound, false)?;
                    let want = active_reference(&pre, &bias, bound, false)?;
                    let fits = width.fits()?;
                    assert!(fits || i == 2, "{what}");
                    let chosen = if fits { chosen } else { width.active(&pre, &bias, bound, false)? };
                    same(&what, &chosen, &want)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn biases_far_apart_choose_as_a_sort_does() -> Result<()> {
    for device in devices()? {
        for dtype in TYPES {
            let (m, n, k) = (6, 1500, 9);
            let mut bias = normal(n, &CPU, Philox::new(4, 0))?.to_vec1::<f32>()?;
            // Steps of latents with one bias far above the others, and with none that counts.
            for (j, b) in bias.iter_mut().enumerate() {
                *b *= if j % 300 == 7 { 1e4 } else { 1. };
                *b = if (512..768).contains(&j) || j == 3 { f32::NEG_INFINITY } else { *b };
            }
            bias[900] = f32::NAN;
            bias[1499] = 3e38;
            let bias = Tensor::new(bias, &device)?.to_dtype(wide(dtype))?;
            let pre = normal((m, n), &device, Philox::new(4, 1))?.to_dtype(dtype)?;
            let what = format!("{dtype:?} on {:?}", device.location());
            same(&what, &top_k(&pre, &bias, k, None)?, &top_k_reference(&pre, &bias, k, None)?)?;
            for bound in [-1e4f64, 0., 1., f64::INFINITY] {
                let bound = Tensor::new(&[bound], &device)?.to_dtype(wide(dtype))?;
                let got = active(&pre, &bias, &bound, true)?;
                same(&what, &got, &active_reference(&pre, &bias, &bound, true)?)?;
            }
        }
    }
    Ok(())
}

#[test]
fn rows_without_anything_above_0_and_nan_have_no_entries() -> Result<()> {
    for device in devices()? {
        let pre = Tensor::new(&[[-1f32, f32::NAN, 0., -0.], [2., f32::NAN, 1., -3.]], &device)?;
        let bias = Tensor::zeros(4, DType::F32, &device)?;
        let codes = top_k(&pre, &bias, 3, None)?;
        assert_eq!(codes.count.to_vec1::<u32>()?, [0, 2]);
        assert_eq!(codes.indices.to_vec2::<u32>()?, [[0, 0, 0], [0, 2, 0]]);
        assert_eq!(codes.values.to_vec2::<f32>()?, [[0., 0., 0.], [2., 1., 0.]]);
        let none = (&pre - 10.)?;
        assert_eq!(batch_threshold(&none, &bias, 1)?.to_vec1::<f32>()?, [f32::INFINITY]);
        let codes = active(&none, &bias, &Tensor::new(&[f32::INFINITY], &device)?, true)?;
        assert_eq!((codes.width(), codes.count.to_vec1::<u32>()?), (1, vec![0, 0]));
    }
    Ok(())
}

/// Two blocks of codes of a minibatch with all that gradients are summed from; of the first, groups
/// of latents have errors of their own.
struct Case {
    codes: SparseCodes,
    pre: Tensor,
    x: Tensor,
    errors: Tensor,
    ends: Vec<usize>,
    lengths: Tensor,
    decoder: Tensor,
}

fn case(
    m: usize,
    n: usize,
    k: usize,
    [d_in, d_out]: [usize; 2],
    ends: &[usize],
    dtype: DType,
    device: &Device,
) -> Result<Case> {
    let of = |shape: (usize, usize), stream, dtype| {
        normal(shape, &CPU, Philox::new(8, stream))?.to_dtype(dtype)?.to_device(device)
    };
    let draw = |shape, stream| of(shape, stream, wide(dtype));
    let bias = Tensor::zeros(n, wide(dtype), device)?;
    let first = top_k(&draw((m, n), 0)?, &bias, k, None)?;
    let bound = Tensor::new(&[1f64], device)?.to_dtype(wide(dtype))?;
    let second = active(&draw((m, n), 1)?, &bias, &bound, false)?;
    let codes = SparseCodes::stacked(&[first, second])?;
    let decoder = draw((n, d_out), 5)?;
    Ok(Case {
        pre: draw((2 * m, codes.width()), 2)?,
        x: of((m, d_in), 3, dtype)?,
        errors: of(((ends.len() + 1) * m, d_out), 4, dtype)?,
        ends: ends.to_vec(),
        lengths: draw((1, n), 6)?.squeeze(0)?,
        decoder: decoder.broadcast_div(&decoder.sqr()?.sum_keepdim(1)?.sqrt()?)?,
        codes,
    })
}

impl Case {
    fn gradients<'a>(&'a self, uses: &'a AtomUses, lengths: bool, unit: bool) -> LatentGradients<'a> {
        let Self { codes, pre, x, errors, ends, .. } = self;
        let lengths = lengths.then_some(&self.lengths);
        LatentGradients { codes, uses, pre, x, errors, ends, lengths, unit }
    }

    /// Codes whose entries are `values` in place of their own.
    fn with(&self, values: &Tensor) -> Result<Tensor> {
        let mask = self.codes.mask()?.to_dtype(values.dtype())?;
        SparseCodes { values: (values * mask)?, ..self.codes.clone() }.to_dense()
    }

    /// The gradients by dense products, in f64.
    fn dense(&self, lengths: bool, unit: bool) -> Result<[Tensor; 2]> {
        let wide = |t: Tensor| t.to_device(&CPU)?.to_dtype(DType::F64);
        let (x, errors, decoder) =
            (wide(self.x.clone())?, wide(self.errors.clone())?, wide(self.decoder.clone())?);
        let x = Tensor::cat(&[&x, &x], 0)?;
        let of_encoder = wide(self.with(&self.pre)?)?.t()?.matmul(&x)?;
        let values = wide(self.with(&self.codes.values)?)?;
        let (m, mut start, mut of_groups) = (x.dim(0)? / 2, 0, vec![]);
        let of_second = errors.narrow(0, self.ends.len() * m, m)?;
        for (g, &end) in self.ends.iter().enumerate() {
            let errors = Tensor::cat(&[&errors.narrow(0, g * m, m)?, &of_second], 0)?;
            of_groups.push(values.narrow(1, start, end - start)?.t()?.matmul(&errors)?);
            start = end;
        }
        let mut of_decoder = Tensor::cat(&of_groups, 0)?;
        let norms = decoder.sqr()?.sum_keepdim(1)?.sqrt()?;
        if lengths {
            let along = (wide(self.lengths.clone())?.unsqueeze(1)? / norms)?;
            of_decoder = (of_decoder + decoder.broadcast_mul(&along)?)?;
        }
        if unit {
            let along = (&of_decoder * &decoder)?.sum_keepdim(1)?;
            of_decoder = (of_decoder - decoder.broadcast_mul(&along)?)?;
        }
        Ok([of_encoder, of_decoder])
    }
}

/// `|a − b|` of numbers that are sums of at most some hundred products of about 1, in f32.
const SUMS: f32 = 2e-4;

fn close(what: &str, got: &Tensor, want: &Tensor) -> Result<()> {
    let narrow = |t: &Tensor| t.to_device(&CPU)?.to_dtype(DType::F32);
    assert_close(what, &narrow(got)?, &narrow(want)?, 1e-5, SUMS)
}

#[test]
fn gradients_of_latents_are_those_of_dense_products() -> Result<()> {
    for device in devices()? {
        for (m, n, k, sizes) in [
            (1, 1, 1, [1, 2]),
            (3, 5, 2, [7, 3]),
            (17, 40, 6, [33, 65]),
            (64, 130, 9, [128, 64]),
            (700, 3, 2, [40, 8]),
            (9, 4, 2, [4104, 1030]),
        ] {
            let groups: Vec<usize> = vec![1, n / 3, n - 1, n];
            let all = vec![n];
            let ends = [Some(&all), (n > 6).then_some(&groups)].into_iter().flatten();
            for (ends, dtype) in ends.flat_map(|ends| TYPES.map(|dtype| (ends, dtype))) {
                let what = format!("[{m}, {n}] {k} {sizes:?} {ends:?} {dtype:?} on {:?}", device.location());
                let case = case(m, n, k, sizes, ends, dtype, &device)?;
                let uses = AtomUses::of(&case.codes)?;
                for (lengths, unit) in [(false, false), (false, true), (true, false)] {
                    let (encoder, decoder) =
                        latent_gradients(&case.gradients(&uses, lengths, unit), &case.decoder)?;
                    let [of_encoder, of_decoder] = case.dense(lengths, unit)?;
                    close(&format!("encoder {what}"), &encoder, &of_encoder)?;
                    close(&format!("decoder {what}"), &decoder, &of_decoder)?;
                }
                let decoder = case.decoder.to_dtype(dtype)?;
                let rows =
                    normal((2 * m * ends.len(), sizes[1]), &device, Philox::new(9, 4))?.to_dtype(dtype)?;
                let dots = code_dots(&case.codes, &rows, &decoder, ends)?;
                let all = rows.to_dtype(wide(dtype))?.matmul(&decoder.to_dtype(wide(dtype))?.t()?)?;
                let mut start = 0;
                let of_groups = ends.iter().enumerate().map(|(g, &end)| {
                    let columns = all.narrow(0, g * 2 * m, 2 * m)?.narrow(1, start, end - start);
                    start = end;
                    columns
                });
                let all = Tensor::cat(&of_groups.collect::<Result<Vec<_>>>()?, 1)?;
                let want = (case.with(&dots.ones_like()?)? * all)?;
                close(&format!("dots {what}"), &case.with(&dots)?, &want)?;
                let y = Tensor::cat(&[&case.x, &case.x], 0)?.to_dtype(wide(dtype))?;
                let atoms = normal((n, sizes[0]), &device, Philox::new(9, 2))?.to_dtype(dtype)?;
                let bias = normal(sizes[0], &device, Philox::new(9, 3))?.to_dtype(wide(dtype))?;
                let [less, narrow] = centred(&y, &bias, dtype)?;
                assert_same_bits(&format!("less {what}"), &less, &y.broadcast_sub(&bias)?)?;
                assert_same_bits(&format!("less {what}"), &narrow, &less.to_dtype(dtype)?)?;
                let got = code_errors(&case.codes, &y, &atoms, ends, -0.25)?;
                let want = code_errors_reference(&case.codes, &y, &atoms, ends, -0.25)?;
                close(&format!("residual {what}"), &got.residual, &want.residual)?;
                let of_errors = [&got, &want].map(|of| of.errors.to_dtype(DType::F32));
                let [got_errors, want_errors] = of_errors;
                let (most, what) = (if dtype == DType::BF16 { 8e-3 } else { 1e-5 }, format!("errors {what}"));
                assert_close(
                    &what,
                    &got_errors?.to_device(&CPU)?,
                    &want_errors?.to_device(&CPU)?,
                    most,
                    SUMS,
                )?;
                let narrow = |t: &Tensor| t.to_device(&CPU)?.to_dtype(DType::F32);
                assert_close(&what, &narrow(&got.squares)?, &narrow(&want.squares)?, 1e-5, SUMS)?;
                let sums = use_sums(&case.codes, &uses, &Tensor::stack(&[&dots, &case.pre], 0)?)?;
                let want = Tensor::stack(&[case.with(&dots)?.sum(0)?, case.with(&case.pre)?.sum(0)?], 0)?;
                close(&format!("sums {what}"), &sums, &want)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_step_of_latents_is_one_of_adam_along_these_gradients() -> Result<()> {
    for device in devices()? {
        for (unit, factor) in [(false, 1f32), (true, 1.), (true, 0.25)] {
            let what = format!("unit {unit}, factor {factor} on {:?}", device.location());
            for (n, sizes, dtype) in
                [(40, [33, 65], DType::F32), (40, [64, 40], DType::BF16), (5, [4104, 8], DType::BF16)]
            {
                let what = format!("{sizes:?} {dtype:?} {what}");
                let case = case(17, n, 3, sizes, &[2, n], dtype, &device)?;
                let uses = AtomUses::of(&case.codes)?;
                let of = case.gradients(&uses, false, unit);
                let gradients = latent_gradients(&of, &case.decoder)?;
                let state = |w: &Tensor, d: usize| {
                    let moments = (uniform((2, n, d), &device, Philox::new(9, 0))? * 0.1)?;
                    Tensor::cat(&[&w.unsqueeze(0)?, &moments], 0)?.contiguous()
                };
                let w = normal((n, sizes[0]), &device, Philox::new(9, 1))?;
                let (encoder, decoder) = (state(&w, sizes[0])?, state(&case.decoder, sizes[1])?);
                let before = [encoder.copy()?, decoder.copy()?];
                let scalars = Tensor::new(&[0.01f32, factor], &device)?;
                let steps = Tensor::new(&[4i64], &device)?;
                let halves = [sizes[0], sizes[1]].map(|d| Tensor::zeros((n, d), DType::BF16, &device));
                let [half_encoder, half_decoder] = halves;
                let (half_encoder, half_decoder) = (half_encoder?, half_decoder?);
                let halves = (dtype == DType::BF16).then_some([&half_encoder, &half_decoder]);
                let state = LatentState { encoder: &encoder, decoder: &decoder, halves };
                latent_step_(state, &of, &scalars, &steps, AdamStep::default())?;
                for (half, state) in halves.into_iter().flatten().zip([&encoder, &decoder]) {
                    assert_same_bits(&what, half, &state.get(0)?.to_dtype(DType::BF16)?)?;
                }
                for (i, (got, gradient)) in
                    [(&encoder, gradients.0), (&decoder, gradients.1)].into_iter().enumerate()
                {
                    let [w, m, v] = [0, 1, 2].map(|plane| before[i].get(plane)?.flatten_all());
                    let gradient = (gradient * f64::from(factor))?.flatten_all()?;
                    let flat = Tensor::stack(&[w?, gradient, m?, v?], 0)?;
                    let want = adam_step_reference(&flat, 0.01, 5, AdamStep::default(), 0)?;
                    let shape = got.dims()[1..].to_vec();
                    let mut w = want.get(0)?.reshape(&shape[..])?;
                    if unit && i == 1 {
                        w = w.broadcast_div(&w.sqr()?.sum_keepdim(1)?.sqrt()?)?;
                    }
                    close(&format!("w of {i}, {what}"), &got.get(0)?, &w)?;
                    close(&format!("m of {i}, {what}"), &got.get(1)?, &want.get(2)?.reshape(&shape[..])?)?;
                    close(&format!("v of {i}, {what}"), &got.get(2)?, &want.get(3)?.reshape(&shape[..])?)?;
                }
            }
        }
    }
    Ok(())
}

/// The loss of a few steps, and the parameters after them.
fn trained(kind: &Kind, precision: Precision, device: &Device) -> Result<(f64, Vec<Tensor>)> {
    let (d, n, batch) = (40, 200, 64);
    let rows = normal((3 * batch, d), &CPU, Philox::new(5, 0))?.to_device(device)?;
    let first = normal((n, d), &CPU, Philox::new(5, 1))?.to_device(device)?;
    let sae = Sae::tied(SaeConfig::new(d, n, kind.clone()), &first)?;
    let loss = LossConfig { aux_k: 8, bandwidth: 0.5, sparsity: 0.1, ..LossConfig::default() };
    let config = SaeTrainConfig {
        loss,
        precision,
        batch,
        dead_rows: 2 * batch as u64,
        learning_rate: Some(1e-3),
        warm_up: 2,
        sparsity_warm_up: 2,
        clip: Some(0.5),
        ..SaeTrainConfig::default()
    };
    let mut trainer = SaeTrainer::new(&sae, config, Philox::new(5, 2))?;
    for step in 0..20 {
        trainer.step(&rows.narrow(0, step % 3 * batch, batch)?, None)?;
    }
    let loss = trainer.metrics()?.loss;
    Ok((loss, trainer.model()?.tensors().into_iter().map(|(_, t)| t).collect()))
}

#[test]
fn training_by_every_kind_is_that_of_the_cpu_and_the_same_bits_when_repeated() -> Result<()> {
    let kinds = [
        Kind::Relu,
        Kind::TopK { k: 6 },
        Kind::BatchTopK { k: 6 },
        Kind::JumpRelu,
        Kind::Gated,
        Kind::Matryoshka { k: 6, prefixes: vec![20, 70, 200] },
    ];
    for kind in kinds {
        let (want, _) = trained(&kind, Precision::F32, &CPU)?;
        for device in devices()? {
            for (precision, most) in
                [(Precision::F32, 1e-4), (Precision::Tf32, 5e-3), (Precision::Bf16, 2e-2)]
            {
                let what = format!("{kind:?} {precision:?} on {:?}", device.location());
                let (loss, tensors) = trained(&kind, precision, &device)?;
                assert!((loss / want - 1.).abs() < most, "{what}: loss {loss}, on the CPU {want}");
                let (_, again) = trained(&kind, precision, &device)?;
                for (got, want) in again.iter().zip(&tensors) {
                    assert_same_bits(&what, got, want)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let first_line = |e: candle::Error| e.to_string().lines().next().unwrap_or_default().to_owned();
    let pre = Tensor::zeros((2, 4), DType::F32, &CPU)?;
    let bias = Tensor::zeros(4, DType::F32, &CPU)?;
    let said = |result: Result<SparseCodes>| first_line(result.map(drop).expect_err("taken"));
    assert_eq!(said(top_k(&pre, &bias, 0, None)), "top_k: k must be at least 1, got 0");
    assert_eq!(
        said(top_k(&pre, &bias.narrow(0, 0, 3)?, 1, None)),
        "top_k: bias must have shape [4], got [3]"
    );
    assert_eq!(
        said(top_k(&pre, &bias, 1, Some(&Tensor::new(&[1u32, 4], &CPU)?))),
        "top_k: among must name latents below 4, got 4"
    );
    assert_eq!(
        said(active(&pre, &bias, &bias.narrow(0, 0, 2)?, true)),
        "active: bound must have shape [4], got [2]"
    );
    let case = case(3, 5, 2, [7, 3], &[5], DType::F32, &CPU)?;
    let uses = AtomUses::of(&case.codes)?;
    let of =
        LatentGradients { x: &case.x.narrow(1, 0, 6)?.contiguous()?, ..case.gradients(&uses, false, true) };
    assert!(latent_gradients(&of, &case.decoder).is_ok());
    let of = LatentGradients { x: &case.x.narrow(0, 0, 0)?.contiguous()?, ..of };
    assert!(
        first_line(latent_gradients(&of, &case.decoder).map(drop).expect_err("no rows"))
            .contains("at least one")
    );
    Ok(())
}
