//! The step of a tied autoencoder in one op is that of its equations, at any size and on any number of threads.
#![allow(missing_docs)]
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{
    Corruption, Philox, TiedStep, corrupt, tied_step_, tied_step_fits, tied_step_reference,
    tied_step_scratch, uniform,
};

const CPU: Device = Device::Cpu;

/// Parameters with gaps between them, `[n]`, and where the biases begin.
struct Case {
    params: Tensor,
    bias_at: usize,
    visible_bias_at: usize,
    sizes: (usize, usize, usize),
    rows: Tensor,
    corrupted: Tensor,
    gathered: Tensor,
    scratch: Tensor,
}

impl Case {
    fn new(batch: usize, n_visible: usize, n_hidden: usize) -> Result<Self> {
        let bias_at = n_visible * n_hidden + 3;
        let visible_bias_at = bias_at + n_hidden + 5;
        let n = visible_bias_at + n_visible + 7;
        let rows = uniform((batch, n_visible), &CPU, Philox::new(1, 0))?;
        Ok(Self {
            params: uniform(n, &CPU, Philox::new(1, 1))?.affine(0.4, -0.2)?,
            bias_at,
            visible_bias_at,
            sizes: (batch, n_visible, n_hidden),
            corrupted: corrupt(&rows, Corruption::SaltAndPepper(0.3), Philox::new(1, 2))?,
            rows,
            gathered: Tensor::ones((2, batch), DType::F64, &CPU)?,
            // What was there before must not matter.
            scratch: Tensor::full(f32::NAN, tied_step_scratch(batch, n_visible, n_hidden), &CPU)?,
        })
    }

    fn parts(&self) -> Result<[Tensor; 3]> {
        let (_, n_visible, n_hidden) = self.sizes;
        let p = self.params.copy()?;
        let weight = p.narrow(0, 0, n_visible * n_hidden)?.reshape((n_hidden, n_visible))?;
        Ok([weight, p.narrow(0, self.bias_at, n_hidden)?, p.narrow(0, self.visible_bias_at, n_visible)?])
    }

    fn step(&self, rate: f32, weight_decay: f32) -> Result<()> {
        tied_step_(TiedStep {
            params: &self.params,
            bias_at: self.bias_at,
            visible_bias_at: self.visible_bias_at,
            gathered: &self.gathered,
            scratch: &self.scratch,
            rows: &self.rows,
            corrupted: &self.corrupted,
            scalars: &Tensor::new(&[rate, 0.], &CPU)?,
            n_hidden: self.sizes.2,
            weight_decay,
        })
    }
}

fn largest(t: &Tensor) -> Result<f64> {
    t.to_dtype(DType::F64)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

#[test]
fn a_step_is_that_of_the_equations_at_any_size() -> Result<()> {
    // Around the rows and columns of every tile, and blocks that are empty or of one row.
    for (n_visible, n_hidden) in
        [(1, 1), (3, 2), (15, 9), (16, 8), (17, 65), (33, 63), (64, 64), (71, 130), (131, 257)]
    {
        for batch in [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 64] {
            for decay in [0., 0.1] {
                let case = Case::new(batch, n_visible, n_hidden)?;
                let before = case.parts()?;
                let [weight, bias, visible_bias] = &before;
                let want = tied_step_reference(
                    [weight, bias, visible_bias],
                    &case.rows,
                    &case.corrupted,
                    0.5,
                    decay,
                )?;
                case.step(0.5, decay as f32)?;
                let [w, b, b_visible] = case.parts()?;
                let sums = (&case.gathered - 1.)?;
                let names = ["weight", "bias", "visible bias", "sums"];
                for ((name, got), want) in names.iter().zip([w, b, b_visible, sums]).zip(&want) {
                    let off = largest(&(got.to_dtype(DType::F64)? - want)?)? / largest(want)?;
                    // Sums of up to 257 products of numbers up to 1, each rounded to 6e-8.
                    assert!(off < 5e-6, "{name} of {n_visible}-{n_hidden}, {batch} rows: {off:e} off");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn nothing_beside_the_parameters_is_written() -> Result<()> {
    let case = Case::new(5, 19, 11)?;
    let before = case.params.to_vec1::<f32>()?;
    case.step(0.5, 0.)?;
    let after = case.params.to_vec1::<f32>()?;
    let (end_of_weights, end_of_bias) = (19 * 11, case.bias_at + 11);
    for gap in [
        end_of_weights..case.bias_at,
        end_of_bias..case.visible_bias_at,
        case.visible_bias_at + 19..after.len(),
    ] {
        assert_eq!(before[gap.clone()], after[gap]);
    }
    assert!(before[..end_of_weights].iter().zip(&after).all(|(a, b)| a != b), "a weight was left out");
    Ok(())
}

#[test]
fn the_bits_do_not_depend_on_the_threads() -> Result<()> {
    let run = |threads: usize| -> Result<Vec<u32>> {
        let pool =
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(candle::Error::wrap)?;
        pool.install(|| {
            let case = Case::new(8, 131, 70)?;
            (0..3).try_for_each(|_| case.step(0.3, 0.))?;
            Ok(case.params.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
        })
    };
    let one = run(1)?;
    for threads in [2, 3, 8] {
        assert!(run(threads)? == one, "{threads} threads");
    }
    Ok(())
}

#[test]
fn a_nan_reaches_the_sums_and_what_does_not_fit_is_refused() -> Result<()> {
    let mut case = Case::new(3, 6, 4)?;
    case.corrupted = (case.corrupted * f64::NAN)?;
    case.step(0.1, 0.)?;
    assert!(case.gathered.flatten_all()?.to_vec1::<f64>()?.iter().all(|x| x.is_nan()));
    let first_line =
        |r: Result<()>| r.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
    let changed = |change: &dyn Fn(&mut Case)| -> Result<Option<String>> {
        let mut case = Case::new(3, 6, 4)?;
        change(&mut case);
        Ok(first_line(case.step(0.1, 0.)))
    };
    let want = "tied_step_: weights, hidden and visible biases must follow each other in params, got 4×6, then 20 and 36 of 49";
    assert_eq!(changed(&|case| case.bias_at = 20)?.as_deref(), Some(want));
    let short = Tensor::zeros(3, DType::F32, &CPU)?;
    let need = tied_step_scratch(3, 6, 4);
    let want = format!("tied_step_: scratch must have at least {need} entries, got 3");
    assert_eq!(changed(&|case| case.scratch = short.clone())?, Some(want));
    let case = Case::new(3, 6, 4)?;
    let want = "tied_step_: weight_decay must be at least 0, got NaN";
    assert_eq!(first_line(case.step(0.1, f32::NAN)).as_deref(), Some(want));
    assert!(!tied_step_fits(&CPU, 65) && !tied_step_fits(&CPU, 1));
    Ok(())
}
