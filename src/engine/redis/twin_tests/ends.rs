//! Ends and extends of holds, in both.

use super::*;

impl Lives {
    pub fn finish(&mut self) {
        let Some(at) = (!self.holds.is_empty()).then(|| self.dice.below(self.holds.len() as u64) as usize)
        else {
            return;
        };
        let (_, accounts) = self.holds[at].clone();
        let id = self.holds[at].0.id;
        let by = self.dice.pick(&[FinishedBy::Caller, FinishedBy::Caller, FinishedBy::Rule]);
        let how = match self.dice.below(6) {
            0 => How::Release { reason: ReleaseReason::NotSent, by },
            1 => How::Doubt,
            _ => How::Settle(Box::new(Settlement { by, ..self.settlement(self.now) })),
        };
        let before = self.read_record(id).expect("known");
        let corrects = self.dice.one_in(3);
        let finish = Finish {
            hold: id,
            found: None,
            accounts: accounts.clone(),
            show: self.charges(false),
            how,
            ended_by_rule: corrects.then(|| Arc::new(before.hold.clone())),
        };
        let expected = match self.memory.finish(&finish, self.now).now_or_never() {
            Some(Ok(Step::Done(finished))) => finished,
            _ => panic!("memory decides"),
        };
        let mut now = self.now;
        let held = Arc::new(before.hold.clone());
        let found = loop {
            let (after, ending) = match finishing::end(&finish, &held, now) {
                Ok(ended) => ended,
                Err(answer) => {
                    assert_eq!(discriminant(&expected), discriminant(&answer));
                    return;
                }
            };
            let from = calls::From { before: &held, version: before.version, operation: self.operation() };
            let head = Head { now, ..self.head() };
            let call = calls::finish(&self.keys, head, &accounts, &from, &after, &ending, &finish.show);
            match self.run(scripts::FINISH, call) {
                Answer::Again(later) => now = later,
                Answer::Done(found) => {
                    let scoped: Vec<_> = accounts.iter().map(|key| key.scope).zip(&found.accounts).collect();
                    let (_, standings) = ending.step(&scoped, &finish, &held, found.now);
                    let Finished::Done { standings: expected, .. } = &expected else { panic!("done") };
                    assert_eq!(*expected, standings);
                    break found;
                }
                answer => panic!("another answer: {answer:?}"),
            }
        };
        let Finished::Done { hold, .. } = expected else { panic!("done") };
        assert_eq!(*hold, Record::read(&found.record).expect("a record").hold);
        self.holds[at].0 = hold;
        self.compare(&accounts);
        if self.holds[at].0.is_finished() && !self.dice.one_in(4) {
            self.holds.swap_remove(at);
        }
    }

    pub fn extend(&mut self) {
        let Some(at) = (!self.holds.is_empty()).then(|| self.dice.below(self.holds.len() as u64) as usize)
        else {
            return;
        };
        let (_, accounts) = self.holds[at].clone();
        let before = self.read_record(self.holds[at].0.id).expect("known");
        let add = if self.dice.one_in(3) { 0 } else { self.dice.below(50) };
        let mut charges: SmallVec<[Charge; 8]> = SmallVec::new();
        for receipt in &before.hold.receipts {
            let limit = self.limits.iter().find(|limit| limit.cell == receipt.cell).expect("known").clone();
            let amount = if matches!(receipt.meter, MeterCode::OUTPUT | MeterCode::TOTAL | MeterCode::CREDITS)
            {
                add
            } else {
                0
            };
            charges.push(limit.charge(&mut self.dice, Demand::fixed(amount), false, self.now));
        }
        let extend = Extend {
            hold: before.hold.id,
            operation: u128::from(self.dice.roll()),
            found: None,
            accounts: accounts.clone(),
            receipts: charges.len(),
            charges,
            add_output: add,
            add_credits: 1,
            reserved_before: before.hold.reserved.output_tokens,
            lease_seconds: 1 + self.dice.below(7200) as u32,
            progress: 0,
            mark: None,
            taking: self.dice.pick(&[Taking::Enforced, Taking::Enforced, Taking::Shadowed]),
        };
        let expected = match self.memory.extend(&extend, self.now).now_or_never() {
            Some(Ok(Step::Done(extended))) => extended,
            _ => panic!("memory decides"),
        };
        let held = Arc::new(before.hold.clone());
        let mut now = self.now;
        let (found, refused) = loop {
            if let Err(answer) = finishing::check_extend(&extend, &held, now) {
                assert_eq!(discriminant(&expected), discriminant(&answer));
                return;
            }
            let from = calls::From { before: &held, version: before.version, operation: self.operation() };
            let head = Head { now, ..self.head() };
            let after = finishing::extended(&extend, &held);
            let call = calls::extend(&self.keys, head, &from, &after, &extend);
            match self.run(scripts::EXTEND, call) {
                Answer::Again(later) => now = later,
                Answer::Done(found) => break (found, false),
                Answer::Refused(found) => break (found, true),
                answer => panic!("another answer: {answer:?}"),
            }
        };
        let accounts_found: SmallVec<[&Account; 3]> = found.accounts.iter().collect();
        let derived = finishing::extend(&accounts_found, &extend, &held, found.now);
        match (expected, derived) {
            (
                Extended::Refused { shortfalls, standings },
                Err(Extended::Refused { shortfalls: told, standings: shown }),
            ) => {
                assert!(refused);
                assert_eq!((shortfalls, standings), (told, shown));
            }
            (Extended::Done { hold, standings, shortfalls, .. }, Ok(stepped)) => {
                assert!(!refused);
                assert_eq!((shortfalls, standings), (stepped.shortfalls, stepped.standings));
                assert_eq!(*hold, stepped.hold);
                assert_eq!(*hold, Record::read(&found.record).expect("a record").hold);
                self.holds[at].0 = hold;
            }
            _ => panic!("another answer"),
        }
        self.compare(&accounts);
    }
}
