//! Latents of sparse autoencoders: what is chosen is what a sort chooses, and gradients and steps
//! are those of dense products, on every device.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{
    AtomUses, LatentGradients, SparseCodes, active, active_reference, batch_threshold,
    batch_threshold_reference, code_dots, latent_gradients, latent_step_, top_k, top_k_reference, use_sums,
};
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::layers::{AdamStep, adam_step_reference};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;

/// Rows, latents and how many are chosen: below, at and above groups of 64 and what lanes of maxima
/// filter, and all latents.
const SIZES: [(usize, usize, usize); 8] = [
    (1, 1, 1),
    (3, 63, 5),
    (5, 64, 64),
    (2, 65, 70),
    (7, 255, 4),
    (4, 256, 16),
    (9, 1025, 8),
    (33, 3072, 32),
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

#[test]
fn the_largest_of_each_row_are_those_of_a_sort() -> Result<()> {
    for device in devices()? {
        for (m, n, k) in SIZES {
            for dtype in [DType::F32, DType::F64] {
                for pre in [normal((m, n), &CPU, Philox::new(1, 0))?, coarse(m, n)?] {
                    let what = format!("top_k {k} of [{m}, {n}] {dtype:?} on {:?}", device.location());
                    let pre = pre.to_dtype(dtype)?.to_device(&device)?;
                    let bias = (normal(n, &device, Philox::new(1, 1))? * 0.25)?.to_dtype(dtype)?;
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
            for pre in [normal((m, n), &CPU, Philox::new(1, 0))?, coarse(m, n)?] {
                let what = format!("{k} a row of [{m}, {n}] on {:?}", device.location());
                let pre = pre.to_device(&device)?;
                let bias = (normal(n, &device, Philox::new(1, 1))? * 0.25)?;
                let cut = batch_threshold(&pre, &bias, k * m)?;
                assert_same_bits(&what, &cut, &batch_threshold_reference(&pre, &bias, k * m)?)?;
                let chosen = active(&pre, &bias, &cut, true)?;
                same(&what, &chosen, &active_reference(&pre, &bias, &cut, true)?)?;
                let bounds = (uniform(n, &device, Philox::new(3, 1))? - 0.25)?;
                for or_equal in [false, true] {
                    let chosen = active(&pre, &bias, &bounds, or_equal)?;
                    same(&what, &chosen, &active_reference(&pre, &bias, &bounds, or_equal)?)?;
                }
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

#[test]
fn ranges_of_latents_are_the_columns_of_dense_codes() -> Result<()> {
    for device in devices()? {
        let (m, n) = (7, 50);
        let pre = normal((m, n), &device, Philox::new(1, 0))?;
        let bias = Tensor::zeros(n, DType::F32, &device)?;
        let codes = top_k(&pre, &bias, 9, None)?;
        let dense = codes.to_dense()?;
        let mut start = 0;
        for (end, part) in [0, 1, 20, 21, 50].into_iter().zip(codes.parted(&[0, 1, 20, 21, 50])?) {
            let columns = Tensor::arange(0u32, n as u32, &device)?.unsqueeze(0)?;
            let is_in = (columns.ge(start as u32)? * columns.lt(end as u32)?)?.to_dtype(DType::F32)?;
            let want = dense.broadcast_mul(&is_in)?;
            assert_same_bits(&format!("{start} to {end}"), &part.to_dense()?, &want)?;
            let counts = want.gt(0f32)?.to_dtype(DType::U32)?.sum(1)?;
            assert_eq!(part.count.to_vec1::<u32>()?, counts.to_vec1::<u32>()?);
            start = end;
        }
    }
    Ok(())
}

/// Two blocks of codes of a minibatch with all that gradients are summed from.
struct Case {
    codes: SparseCodes,
    pre: Tensor,
    x: Tensor,
    errors: Tensor,
    lengths: Tensor,
    decoder: Tensor,
}

fn case(
    m: usize,
    n: usize,
    k: usize,
    [d_in, d_out]: [usize; 2],
    dtype: DType,
    device: &Device,
) -> Result<Case> {
    let draw = |shape: (usize, usize), stream| {
        normal(shape, &CPU, Philox::new(8, stream))?.to_dtype(dtype)?.to_device(device)
    };
    let bias = Tensor::zeros(n, dtype, device)?;
    let first = top_k(&draw((m, n), 0)?, &bias, k, None)?;
    let second = active(&draw((m, n), 1)?, &bias, &Tensor::new(&[1f64], device)?.to_dtype(dtype)?, false)?;
    let codes = SparseCodes::stacked(&[first, second])?;
    let decoder = draw((n, d_out), 5)?;
    Ok(Case {
        pre: draw((2 * m, codes.width()), 2)?,
        x: draw((m, d_in), 3)?,
        errors: draw((2 * m, d_out), 4)?,
        lengths: draw((1, n), 6)?.squeeze(0)?,
        decoder: decoder.broadcast_div(&decoder.sqr()?.sum_keepdim(1)?.sqrt()?)?,
        codes,
    })
}

impl Case {
    fn gradients<'a>(&'a self, uses: &'a AtomUses, lengths: bool, unit: bool) -> LatentGradients<'a> {
        let Self { codes, pre, x, errors, .. } = self;
        LatentGradients { codes, uses, pre, x, errors, lengths: lengths.then_some(&self.lengths), unit }
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
        let mut of_decoder = wide(self.with(&self.codes.values)?)?.t()?.matmul(&errors)?;
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
        for (m, n, k, sizes) in
            [(1, 1, 1, [1, 2]), (3, 5, 2, [7, 3]), (17, 40, 6, [33, 65]), (64, 130, 9, [128, 64])]
        {
            for dtype in [DType::F32, DType::F64] {
                let what = format!("[{m}, {n}] {k} {sizes:?} {dtype:?} on {:?}", device.location());
                let case = case(m, n, k, sizes, dtype, &device)?;
                let uses = AtomUses::of(&case.codes)?;
                for (lengths, unit) in [(false, false), (false, true), (true, false)] {
                    let (encoder, decoder) =
                        latent_gradients(&case.gradients(&uses, lengths, unit), &case.decoder)?;
                    let [of_encoder, of_decoder] = case.dense(lengths, unit)?;
                    close(&format!("encoder {what}"), &encoder, &of_encoder)?;
                    close(&format!("decoder {what}"), &decoder, &of_decoder)?;
                }
                let dots = code_dots(&case.codes, &case.errors, &case.decoder)?;
                let all = case.errors.matmul(&case.decoder.t()?)?;
                let want = (case.with(&dots.ones_like()?)? * all)?;
                close(&format!("dots {what}"), &case.with(&dots)?, &want)?;
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
            let (n, sizes) = (40, [33, 65]);
            let case = case(17, n, 6, sizes, DType::F32, &device)?;
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
            latent_step_(&encoder, &decoder, &of, &scalars, &steps, AdamStep::default())?;
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
    let case = case(3, 5, 2, [7, 3], DType::F32, &CPU)?;
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
