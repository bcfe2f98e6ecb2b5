//! Headers whose names macros compute.

use std::rc::Rc;

use super::super::macros::{Macros, OperandTokens};
use super::super::options::Options;
use super::{Base, STEPS_OF_REQUEST, Walk};
use crate::fallible::{copy, push};
use crate::outcome::Bypass;

/// Rounds of computing names from the macros known so far.
const MAX_ROUNDS: usize = 64;

/// An operand from which macros compute names.
pub(super) struct ComputedName {
    operand: Vec<u8>,
    /// Where it is included: the directory of the including file, and its depth.
    places: Vec<(Option<Rc<Base>>, usize)>,
}

impl Walk<'_> {
    /// Remembers an operand, each only once: what it names is found by [`Walk::compute_names`].
    pub(super) fn compute_later(
        &mut self,
        operand: Vec<u8>,
        beside: Option<Rc<Base>>,
        depth: usize,
    ) -> Result<(), Bypass> {
        self.work.spend(STEPS_OF_REQUEST + operand.len())?;
        let number = match self.computed_numbers.get(&operand) {
            Some(number) => *number,
            None => {
                let number = self.computed.len();
                let reserved = self.computed_numbers.try_reserve(1);
                reserved.map_err(|_| Bypass::NoMemory)?;
                self.computed_numbers.insert(copy(&operand)?, number);
                let places = Vec::new();
                push(&mut self.computed, ComputedName { operand, places })?;
                number
            }
        };
        push(&mut self.computed[number].places, (beside, depth))
    }

    /// Computes names from operands, and follows them. A file that is found by a computed name may define macros for others.
    pub(super) fn compute_names(&mut self, options: Option<&Options>) -> Result<(), Bypass> {
        if self.computed.is_empty() {
            return Ok(());
        }
        let mut macros = Macros::new(self.work.clone());
        for definition in options
            .iter()
            .flat_map(|options| options.judged_definitions())
        {
            macros.add_option(definition)?;
        }
        let mut operands: Vec<OperandTokens> = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let (places, texts) = (self.closure.places.len(), self.texts.len());
            self.texts.new_definitions(|text| macros.add(text))?;
            for computed in &self.computed[operands.len()..] {
                push(&mut operands, macros.operand(&computed.operand)?)?;
            }
            let mut unresolved = Ok(());
            for (number, operand) in operands.iter().enumerate() {
                match macros.names(operand) {
                    Ok(names) => self.request_all(number, &names)?,
                    Err(reason @ (Bypass::NoMemory | Bypass::CostlyText)) => return Err(reason),
                    Err(reason) => unresolved = Err(reason),
                }
                self.work.check(0)?;
            }
            self.read_on()?;
            if (places, texts) == (self.closure.places.len(), self.texts.len()) {
                return unresolved;
            }
        }
        Err(Bypass::TooManyHeaders)
    }

    /// Looks for headers wherever the operand with this number is.
    fn request_all(&mut self, number: usize, names: &[Vec<u8>]) -> Result<(), Bypass> {
        for place in 0..self.computed[number].places.len() {
            let (beside, depth) = self.computed[number].places[place].clone();
            for name in names {
                self.request(name, beside.as_deref(), depth)?;
            }
        }
        Ok(())
    }
}
