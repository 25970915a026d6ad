//! Initial dictionaries.
use super::{CPU, unit_rows};
use candle::{Result, Tensor};
use chandlery::dictionary::{Dictionary, DictionaryConfig, Init, init, overcomplete_dct};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;

#[test]
fn a_start_of_random_signals_has_neither_zeros_nor_copies() -> Result<()> {
    // Ten directions, each many times over with either sign, and zeros.
    let directions = normal((10, 5), &CPU, Philox::new(9, 0))?.to_vec2::<f32>()?;
    let rows: Vec<Vec<f32>> =
        (0..300).map(|i| directions[i % 10].iter().map(|x| x * [0., 1., -2.][i % 3]).collect()).collect();
    let y = Tensor::new(rows, &CPU)?;
    let d = init(&Init::RandomSignals, 13, &y, Philox::new(10, 0))?;
    assert!(Dictionary::from_tensor(DictionaryConfig::new(13, 5, 1), d.clone())?.mutual_coherence()? < 0.999);
    let like =
        d.matmul(&unit_rows(&Tensor::new(directions, &CPU)?)?.t()?)?.abs()?.max(1)?.to_vec1::<f32>()?;
    assert_eq!(
        like.iter().filter(|&&like| like > 1. - 1e-5).count(),
        10,
        "all ten directions, then random ones"
    );
    let lengths = d.sqr()?.sum(1)?.to_vec1::<f32>()?;
    assert!(lengths.iter().all(|length| (length - 1.).abs() < 1e-6));
    Ok(())
}

#[test]
fn the_cosine_dictionary_has_unit_atoms_of_mean_zero_but_for_the_first() -> Result<()> {
    for (n, side) in [(64, 8), (256, 8), (1, 3), (10, 4), (200, 8)] {
        let d = overcomplete_dct(n, side)?;
        assert_eq!(d.dims(), [n, side * side]);
        let rows = d.to_vec2::<f64>()?;
        let flat = 1. / side as f64;
        assert!(rows[0].iter().all(|x| (x - flat).abs() < 1e-12), "the first is constant");
        for row in &rows[1..] {
            assert!(row.iter().sum::<f64>().abs() < 1e-12);
            assert!((row.iter().map(|x| x * x).sum::<f64>() - 1.).abs() < 1e-12);
        }
    }
    // By hand: K = 2, waves (1, 1)/√2 and (1, 0) − ½ = (½, −½), scaled to length 1.
    let d = overcomplete_dct(4, 2)?.to_vec2::<f64>()?;
    assert!(d[1].iter().zip([0.5, -0.5, 0.5, -0.5]).all(|(x, want)| (x - want).abs() < 1e-12), "{d:?}");
    assert!(d[3].iter().zip([0.5, -0.5, -0.5, 0.5]).all(|(x, want)| (x - want).abs() < 1e-12), "{d:?}");
    Ok(())
}
