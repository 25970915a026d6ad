//! Help texts that programs share, and their examples.
use clap::Command;

/// The steps of `--prepare`, a line each.
macro_rules! steps {
    () => {
        "\
standardise: each column to mean 0 and standard deviation 1
minmax: each column onto 0 to 1; later values outside are clipped
robust: each column minus its median, divided by the distance of its quartiles
log1p: ln(1 + x); values must be above -1
scale=F: multiply by F
unit-variance: divide by the standard deviation over all values
mean-norm: multiply by one factor, so that rows have a mean length of the root of their number of values
center: subtract the mean of each feature
row-mean: subtract the mean of each row
contrast[=C]: give each row mean 0 and variance 1; C (default 0.00015) is added to its variance
rescale: subtract row means, clip at three standard deviations, map to 0.1 to 0.9
pca=N: N principal components
whiten[=N]: N principal components, each with variance 1; without N, all of them
zca[=EPSILON]: ZCA whitening; EPSILON (default 1e-5) is added to variances"
    };
}

/// The long help of `--prepare`.
pub const PREPARE: &str = concat!(
    "Steps that prepare rows, in this order, separated by commas, such as log1p,standardise,pca=50; or none. They are fitted to the training rows \
     and saved with the model.\n\nDefault: none, but\n\
     for patches of images: row-mean in dictionary-learning (unless --fixed-dc or --nonnegative-atoms is given), row-mean,zca=0.1 in \
     sparse-coding, rescale in sparse-autoencoder;\n\
     for other rows: mean-norm in sparse-autoencoder with --kind;\n\
     for tables with values outside of 0 to 1: minmax in dae; in dbn, if --visible is not given, minmax for columns on one scale (the widest at \
     most twice as wide as half of them), else standardise with --visible gaussian;\n\
     for tsne evaluate: the fitted steps of the run.\n\n",
    steps!()
);

/// The command, with examples that start as the user calls it: `chandlery dbn` in place of `dbn`.
pub(crate) fn called(command: Command, name: &str) -> Command {
    let Some((_, bin)) = name.rsplit_once(' ') else { return command };
    let command = match command.get_after_help().map(ToString::to_string) {
        Some(help) => command.after_help(help.replace(&format!("\n  {bin}"), &format!("\n  {name}"))),
        None => command,
    };
    command.mut_subcommands(|sub| called(sub, name))
}

/// For tests: the command lines of the examples at the end of a help text, in words.
#[cfg(test)]
pub(crate) fn examples(help: &str) -> Vec<Vec<String>> {
    let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
    lines
        .map(|line| line.split('#').next().unwrap_or(line).split_whitespace().map(str::to_owned).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use chandlery_datasets::preparation::{CONTRAST_REGULARISER, StepConfig, WhiteningConfig};

    #[test]
    fn the_steps_of_the_help_are_read_and_have_the_defaults_that_it_names() {
        let (_, list) = PREPARE.rsplit_once("\n\n").unwrap();
        for line in list.lines() {
            let form = line.split_once(':').unwrap().0;
            let name = form.split(['[', '=']).next().unwrap();
            let text = if form.contains('=') { format!("{name}=2") } else { name.to_owned() };
            assert!(text.parse::<StepConfig>().is_ok(), "{line}");
            assert_eq!(
                name.parse::<StepConfig>().is_err(),
                form.contains('=') && !form.contains('['),
                "{line}"
            );
        }
        for default in
            [format!("{CONTRAST_REGULARISER:.5}"), format!("{:e}", WhiteningConfig::default().epsilon)]
        {
            assert!(PREPARE.contains(&format!("(default {default})")), "{default}");
        }
    }

    #[test]
    fn examples_are_the_indented_lines_without_what_is_said_of_them() {
        assert_eq!(
            examples("Examples:\n  dbn --k 2   # CD-2\n  dbn"),
            [vec!["dbn", "--k", "2"], vec!["dbn"]]
        );
    }
}
