//! Column sums are close to exact and in the order that they say.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::{column_sums_, column_sums_reference};
use chandlery_ops::core::normal;

fn sums_of(x: &Tensor) -> Result<Vec<f32>> {
    // Not zero to begin with: what was there must not be added.
    let sums = Tensor::full(f32::NAN, x.dim(1)?, x.device())?;
    column_sums_(&sums, x)?;
    sums.to_vec1()
}

#[test]
fn sums_run_in_the_order_that_is_documented() -> Result<()> {
    for (rows, n_units) in [(0, 3), (1, 5), (31, 2), (32, 33), (33, 31), (95, 32), (1000, 1), (401, 500)] {
        let x = normal((rows, n_units), &Device::Cpu, Philox::new(4, 0))?;
        let values = x.to_vec2::<f32>()?;
        let by_hand = |j: usize| {
            let lane = |l: usize| values.iter().skip(l).step_by(32).fold(0f32, |sum, row| sum + row[j]);
            let mut lanes: Vec<f32> = (0..32).map(lane).collect();
            for half in [16, 8, 4, 2, 1] {
                (0..half).for_each(|l| lanes[l] += lanes[l + half]);
            }
            lanes[0]
        };
        let want: Vec<f32> = (0..n_units).map(by_hand).collect();
        assert_eq!(sums_of(&x)?, want, "{rows} rows of {n_units}");
    }
    Ok(())
}

#[test]
fn sums_of_many_rows_keep_their_digits() -> Result<()> {
    // 2^17 rows of about 0.1: added one by one in f32 the sum is off in the fourth digit.
    let x = Tensor::full(0.1f32, (1 << 17, 3), &Device::Cpu)?;
    let exact = column_sums_reference(&x)?.to_vec1::<f32>()?[0];
    // 4096 additions a lane, each off by at most half an ulp and in the same direction at worst.
    const TOLERANCE: f32 = 4096. / 16_777_216.;
    let relative = |sum: f32| (sum - exact).abs() / exact;
    for sum in sums_of(&x)? {
        assert!(relative(sum) <= TOLERANCE, "{sum} against {exact}");
    }
    let naive = (0..1 << 17).fold(0f32, |sum, _| sum + 0.1);
    assert!(relative(naive) > TOLERANCE, "the control passes: {naive} against {exact}");
    Ok(())
}

#[test]
fn a_nan_stays_in_its_column() -> Result<()> {
    let x = Tensor::new(&[[1f32, f32::NAN, 3.], [4., 5., 6.]], &Device::Cpu)?;
    let sums = sums_of(&x)?;
    assert!(sums[1].is_nan());
    assert_eq!((sums[0], sums[2]), (5., 9.));
    let exact = sums_of(&Tensor::new(&[[1f32, 2.], [0.5, 4.]], &Device::Cpu)?.to_dtype(DType::BF16)?)?;
    assert_eq!(exact, [1.5, 6.]);
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let (x, sums) = (zeros(&[2, 3])?, zeros(&[3])?);
    let message =
        |r: Result<()>| r.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
    let cases = [
        (column_sums_(&sums, &sums), "column_sums_: x must be [rows, n_units], got shape [3]"),
        (column_sums_(&zeros(&[2])?, &x), "column_sums_: sums must have shape [3], got [2]"),
        (column_sums_(&sums, &x.to_dtype(DType::U8)?), "column_sums_: x must be f32 or bf16, got U8"),
        (
            column_sums_(&sums, &zeros(&[3, 2])?.t()?),
            "column_sums_: x must be contiguous, got shape [2, 3] with strides [1, 2]; call .contiguous() first",
        ),
    ];
    for (result, want) in cases {
        assert_eq!(message(result).as_deref(), Some(want));
    }
    Ok(())
}
