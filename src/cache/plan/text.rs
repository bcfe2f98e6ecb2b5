//! The texts of a call: its options, and for a source its bytes and the header files that it includes.

use std::time::SystemTime;

use super::CallInputs;
use crate::cache::Cache;
use crate::cache::headers::{source_independent_closure, texts};
use crate::cache::known_sources::{self, KnownHeaders, KnownSource, SourceDigest};
use crate::driver::{BuildArguments, Driver};
use crate::key::include::Closure;
use crate::key::options::{self, Options};
use crate::key::source::{before_digits, is_spelled_by_environment};
use crate::outcome::Bypass;
use crate::shadow::{Base, Operation};

/// Longer sources, intermediate languages and headers are left to the driver.
const MAX_TEXT_BYTES: usize = 64 << 20;

/// Longer options are left to the driver. No compiler can be given a longer argument on a command line of Linux. The copies that
/// are made of shorter ones fit into the allocator's reserve.
const MAX_OPTIONS_BYTES: usize = 128 << 10;

/// What the texts of a call say.
pub(super) struct CallText {
    /// The options; None is NULL.
    pub(super) options: Option<Options>,
    /// The header files that were read, or looked for.
    pub(super) closure: Closure,
    /// The digest of a source; of no meaning for other calls.
    pub(super) source: SourceDigest,
    /// Whether the program may have debug information.
    pub(super) has_debug: bool,
}

impl CallText {
    /// Whether it reads a header file that only some option beginning with `-I` makes the driver's own cache look at. Clang's own headers
    /// stay with the driver.
    fn reads_unseen_file(&self, driver: &Driver) -> bool {
        let written = self.options.as_ref().map_or(&[][..], Options::written);
        let mut words = written.split(u8::is_ascii_whitespace);
        let of_clang = driver.clang_resources().unwrap_or_default();
        !words.any(|word| word.starts_with(b"-I")) && !self.closure.is_below(&of_clang)
    }
}

impl Cache {
    /// Reads the texts of a call. A source that this process knows already is replaced by the copy that it shares.
    pub(super) fn call_text(&self, inputs: &mut CallInputs) -> Result<CallText, Bypass> {
        check_lengths(inputs)?;
        let options = written_options(&inputs.arguments);
        let mut options = options.map(options::parse).transpose()?;
        let profile = inputs.driver.profile;
        if profile.always_debug {
            options = options.map(Options::with_debug).transpose()?;
        }
        let asks_for_debug = options.as_ref().is_some_and(|options| options.debug);
        let mut text = CallText {
            options,
            closure: Closure::default(),
            source: SourceDigest::default(),
            has_debug: asks_for_debug || profile.always_debug,
        };
        if profile.refuses_debug && text.has_debug {
            return Err(Bypass::RefusedByProfile);
        }
        if matches!(inputs.base, Base::Source(_)) {
            let options = text.options.as_ref();
            (text.closure, text.source) =
                self.source_and_headers(inputs, options, text.has_debug)?;
        }
        if profile.confuses_headers && text.reads_unseen_file(inputs.driver) {
            return Err(Bypass::RefusedByProfile);
        }
        Ok(text)
    }

    /// Follows the headers of a source, unless the source is known to name none.
    fn source_and_headers(
        &self,
        inputs: &mut CallInputs,
        options: Option<&Options>,
        has_debug: bool,
    ) -> Result<(Closure, SourceDigest), Bypass> {
        let CallInputs {
            driver,
            operation,
            arguments,
            base,
            ..
        } = inputs;
        let (driver, headers) = (*driver, operation.headers());
        let written = written_options(arguments);
        let implicit = driver.profile.implicit_includes;
        let Base::Source(text) = base else {
            return Ok(Default::default());
        };
        let may_omit = !has_debug && may_omit_random_name(text, operation);
        if headers.is_empty()
            && let Some(known) = self.sources.find(text, written, implicit)
            && (may_omit || known.digest.is_of_all())
            && let Some(closure) = closure_of(&known, driver, options)
        {
            if let Some(shared) = known.shared_text() {
                *text = shared.clone();
            }
            return Ok((closure, known.digest));
        }
        let (begun, driver_dirs) = (SystemTime::now(), driver.include_dirs());
        let followed = texts(driver, text, headers, options)?;
        let omits = may_omit && !followed.spells_random_name;
        let digest = known_sources::digest(text, omits);
        let names_no_header = |closure: Closure| closure.is_like(&followed.closure);
        if !headers.is_empty() {
            return Ok((followed.closure, digest));
        }
        // Where a file was found, the other closure is not asked for: it has none.
        if followed.closure.files().next().is_none() {
            if source_independent_closure(driver, options).is_some_and(names_no_header) {
                self.sources
                    .remember(text, written, implicit, digest, None)?;
            }
            // Only headers of the driver's compiler: a program writes others, and a write to a mapped file on a file system in memory
            // does not show in the state of the file.
        } else if let Some(driver_dirs) = driver_dirs
            && followed.closure.is_settled(begun)
            && followed.closure.is_below(&driver.clang_resources().unwrap_or_default())
            // Another thread may have loaded a library or set a variable meanwhile.
            && driver.include_dirs().as_ref() == Some(&driver_dirs)
        {
            let headers = Some(KnownHeaders {
                closure: followed.closure.clone(),
                driver_dirs,
            });
            self.sources
                .remember(text, written, implicit, digest, headers)?;
        }
        Ok((followed.closure, digest))
    }
}

/// The header files of a known source, as they are now. None: they are to be followed.
fn closure_of(known: &KnownSource, driver: &Driver, options: Option<&Options>) -> Option<Closure> {
    match &known.headers {
        None => source_independent_closure(driver, options),
        Some(headers) => headers.in_directories(&driver.include_dirs()?),
    }
}

/// The options as the application wrote them; None is NULL.
fn written_options(arguments: &BuildArguments) -> Option<&[u8]> {
    let options = arguments.options.as_ref();
    options.map(|options| options.as_bytes())
}

/// Refuses options that are too long to be copied.
pub(super) fn check_options(arguments: &BuildArguments) -> Result<(), Bypass> {
    match written_options(arguments).map_or(0, <[u8]>::len) > MAX_OPTIONS_BYTES {
        true => Err(Bypass::TooLarge),
        false => Ok(()),
    }
}

fn check_lengths(inputs: &CallInputs) -> Result<(), Bypass> {
    let text = match &inputs.base {
        Base::Source(text) | Base::Il(text, _) => text.len(),
        Base::Linked(_) => 0,
    };
    let headers = inputs.operation.headers().iter();
    let mut lengths = [text]
        .into_iter()
        .chain(headers.map(|header| header.source.len()));
    match lengths.any(|length| length > MAX_TEXT_BYTES) {
        true => Err(Bypass::TooLarge),
        false => Ok(()),
    }
}

/// Whether PyOpenCL's random name may be left out of the key, as far as the source and the call tell. A compiled object may be
/// linked with a program that knows the name.
fn may_omit_random_name(text: &[u8], operation: &Operation) -> bool {
    let has_random_name = before_digits(text).is_some();
    has_random_name && matches!(operation, Operation::Build) && !is_spelled_by_environment()
}
