//! Changes on the way, as the command line has them.
use super::choices::one_or_more;
use super::figures::words_of_list;
use crate::options::{above_zero, below_one};
use chandlery::tsne::{Change, NewValues};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// A value of `--change`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChangeArg(pub Change);

impl FromStr for ChangeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "must be ITERATION:NAME=VALUE,..., such as 500:perplexity=10,exaggeration=4".to_owned();
        let (iteration, values) = text.split_once(':').ok_or_else(form)?;
        let iteration = iteration.parse().map_err(|_| form())?;
        let mut to = NewValues::default();
        for part in values.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(form)?;
            let of_name = |e: String| format!("{name}={value}: {e}");
            let is_twice = match name {
                "exaggeration" => to.exaggeration.replace(above_zero(value).map_err(of_name)?).is_some(),
                "learning-rate" => to.learning_rate.replace(above_zero(value).map_err(of_name)?).is_some(),
                "momentum" => to.momentum.replace(below_one(value).map_err(of_name)?).is_some(),
                "degrees-of-freedom" => {
                    let alpha = above_zero(value).map_err(of_name)?;
                    to.degrees_of_freedom.replace(alpha as f32).is_some()
                }
                "perplexity" => {
                    let all = value.split('+').map(one_or_more).collect::<Result<Vec<_>, _>>();
                    to.perplexities.replace(all.map_err(of_name)?).is_some()
                }
                _ => {
                    return Err(format!(
                        "{name}: must be exaggeration, learning-rate, momentum, degrees-of-freedom or perplexity"
                    ));
                }
            };
            if is_twice {
                return Err(format!("{name}: must be there once"));
            }
        }
        Ok(Self(Change { iteration, to }))
    }
}

/// A change in words.
pub fn words_of_change(change: &Change) -> String {
    let NewValues { exaggeration, learning_rate, momentum, degrees_of_freedom, perplexities } = &change.to;
    let one = |name: &str, value: Option<f64>| value.map(|value| format!("{name} {value}"));
    let all = [
        perplexities.as_ref().map(|all| format!("perplexity {}", words_of_list(all))),
        one("exaggeration", *exaggeration),
        one("learning rate", *learning_rate),
        one("momentum", *momentum),
        degrees_of_freedom.map(|alpha| format!("degrees of freedom {alpha}")),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    format!("{} from iteration {} on", all.join(" and "), change.iteration)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn changes_are_read_and_told() {
        let text =
            "250:exaggeration=4,learning-rate=200,momentum=0.5,degrees-of-freedom=0.5,perplexity=10+50";
        let ChangeArg(change) = text.parse().unwrap();
        let to = NewValues {
            exaggeration: Some(4.),
            learning_rate: Some(200.),
            momentum: Some(0.5),
            degrees_of_freedom: Some(0.5),
            perplexities: Some(vec![10., 50.]),
        };
        assert_eq!(change, Change { iteration: 250, to });
        assert_eq!(
            words_of_change(&change),
            "perplexity 10, 50 and exaggeration 4 and learning rate 200 and momentum 0.5 and degrees of freedom 0.5 from iteration 250 on"
        );
        for (text, want) in [
            ("", "must be ITERATION:NAME=VALUE"),
            ("250", "must be ITERATION:NAME=VALUE"),
            ("-1:momentum=0.5", "must be ITERATION:NAME=VALUE"),
            ("250:momentum", "must be ITERATION:NAME=VALUE"),
            ("250:momentum=1", "momentum=1: "),
            ("250:exaggeration=0", "exaggeration=0: "),
            ("250:perplexity=10+0.5", "perplexity=10+0.5: must be a number of at least 1"),
            ("250:theta=0", "theta: must be exaggeration, learning-rate, momentum"),
            ("250:momentum=0.5,momentum=0.6", "momentum: must be there once"),
        ] {
            let error = text.parse::<ChangeArg>().unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}
