"""The training loop: steps, and between them what is saved, judged and told when it is due."""

import signal
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from fastmoco import checkpoint, distributed, optim
from fastmoco.album import Unreadable
from fastmoco.commentary import Commentary
from fastmoco.draws import Draws
from fastmoco.engine import Engine
from fastmoco.evaluate.judge import Answer, Judge
from fastmoco.images import Source
from fastmoco.interrupts import Interrupts
from fastmoco.journal import Journal
from fastmoco.learner import Learner
from fastmoco.loader import Batch, Loader, Resident, Way, choose
from fastmoco.meeting import losses_told, orphaned, restarted
from fastmoco.meter import Meter
from fastmoco.recipe import Recipe
from fastmoco.run import Run
from fastmoco.weights import FILE, noted, save_encoder


class Training:
    """One training in one run folder, from wherever it stands to its end. All ranks make it, and rank 0 writes."""

    def __init__(self, recipe: Recipe, run: Run, source: Source, folder: Path) -> None:
        self.recipe, self.run, self.source, self.folder = recipe, run, source, folder
        rank, ranks = distributed.rank(), distributed.world()
        self.draws = Draws(
            recipe.views, recipe.batch, recipe.epochs, run.seed, len(source.train), rank=rank, world=ranks
        )
        torch.manual_seed(run.seed)
        self.learner = Learner(recipe)  # on the CPU: a seed then means the same weights everywhere
        self.engine = Engine(self.learner, run.gear)
        self.step = 0
        self.saved = -1  # the step of the newest checkpoint
        self.meter = Meter(run.device)
        self.loader: Loader | None = None  # which a training that is done does not need
        self.way: Way = run.loader  # which loader; "auto" only until it is chosen, so that a restart takes the same
        self.judge: Judge | None = None
        self.notes: list[str] = []  # to be said when there is a journal
        self.interrupts = Interrupts()
        self.asked: signal.Signals | None = None  # to stop, as all ranks know
        self._resume()
        self.unreadable = Unreadable(source.train, folder / "bad_images.txt", again=not self.done)
        self.journal = Journal(folder, self.step)
        self.commentary = Commentary(recipe, self.draws, self.meter, self.journal, self.way == "resident")

    def train(self) -> None:
        """Go on to the end, or until a signal asks to stop."""
        with closing(self.journal), self._noting_mistakes(), losses_told(), self.interrupts:
            self.engine.start()
            for note in self.notes:
                self.journal.say(note)
            self._judge()  # if it was stopped before the answer
            if not self.over:
                self._go_on()
            self.save()
            if self._confer() and self.asked is not None:
                self.journal.say(f"stopped by {self.asked.name} at step {self.step:,}; the same command goes on")
                raise KeyboardInterrupt(int(self.asked))
            self._conclude()

    @property
    def done(self) -> bool:
        return self.step == self.draws.steps

    @property
    def over(self) -> bool:
        """Whether there is no step to make: all are made, or all ranks are to stop."""
        return self.done or self.asked is not None

    def _go_on(self) -> None:
        """Step after step, and between them what is due. Workers end with it: one that dies would end a save."""
        with closing(self._load()) as batches:
            while not self.over:
                with self.meter.waiting():
                    batch = next(batches)
                if self._confer(batch):
                    break
                self._advance(batch)
                self.interrupts.hold()
                if self._due(self.run.log_every):
                    self._log()
                elif self.journal.stale():
                    self.commentary.show(self.step)
                if self._due(self.run.save_every) or self._to_keep():
                    self.save()
                self._judge()

    def _due(self, every: int) -> bool:
        """Whether it is time for what comes after every so many steps, and after the last."""
        return self.step % every == 0 or self.done

    def _confer(self, batch: Batch | None = None) -> bool:
        """What any rank has to tell, all hear: a signal, images that could not be read. Whether one is asked to stop.

        Every rank comes here before every step, so that all of them stop after the same one.
        """
        asked = self.interrupts.asked or (signal.SIGTERM if orphaned() else None)
        bad = {} if batch is None else self.unreadable.new(batch.bad)
        with self.meter.standing():
            heard = distributed.agree((asked, bad) if asked or bad else None)
        unread: dict[int, str] = {}
        for signalled, places in filter(None, heard or ()):
            self.asked = self.asked or signalled
            unread |= places
        if batch is not None:
            known = len(self.unreadable.reasons)
            self.unreadable.add(unread, batch.read)
            if known == 0 < len(self.unreadable.reasons):
                self.journal.say(f"some images cannot be read and are replaced; {self.unreadable.path} lists them")
        return self.asked is not None

    @contextmanager
    def _noting_mistakes(self) -> Iterator[None]:
        """Why a training ended is told in its log, too."""
        try:
            yield
        except (ValueError, OSError) as error:
            self.journal.note(str(error))
            raise
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):  # which torch raises wherever we are, when it hears of it
                raise
            reason = "a worker that reads images has died, perhaps for want of memory; use fewer --workers"
            self.journal.note(reason)
            raise ValueError(reason) from None
        finally:
            self.engine.release()

    def _advance(self, batch: Batch) -> None:
        """One step, with its learning rate."""
        assert self.loader is not None
        self.step += 1
        part = optim.rate(self.recipe.schedule, self.step, self.draws.steps, self.draws.per_epoch)
        self.meter.count(*self.engine.step(part, self.loader.views(batch)))

    def save(self) -> None:
        """A checkpoint and the encoder, if there is anything new. What is broken is never saved."""
        if self.saved == self.step:
            return
        self._refuse_broken()
        if distributed.leads():
            with self.meter.pause():
                self.journal.sync()
                state = {"step": self.step, "way": self.way, "meter": self.meter.state(), **self.engine.state()}
                checkpoint.save(self.folder / "checkpoints", state, self._to_keep())
                self._save_encoder()
        self.saved = self.step

    def _save_encoder(self) -> None:
        recipe, encoder = self.recipe, self.learner.online.encoder
        save_encoder(self.folder / FILE, recipe.encoder, encoder, self.step, recipe.size())

    def _to_keep(self) -> bool:
        return self.run.keep_every > 0 and self.step % self.run.keep_every == 0

    def _resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        state, again = self._newest(), restarted()
        if state is not None:
            self._restore(state)
            told = "done before" if self.done else f"resumed at step {self.step:,} of {self.draws.steps:,}"
            self.notes.append(f"{again}; {told}" if again else told)
        elif again:
            self.notes.append(f"{again}; there was no checkpoint yet, so it begins anew")

    def _newest(self) -> checkpoint.State | None:
        """The newest checkpoint, as rank 0 reads it."""
        folder = self.folder / "checkpoints"
        state = distributed.tell(lambda: checkpoint.newest(folder, self.notes.append))
        found = distributed.agree((self.folder / FILE).exists() or folder.exists() or None)
        if state is None and found is not None and not found[0]:
            raise ValueError(
                f"{self.folder} is there for rank {found.index(True)} and not for rank 0; --out must be on a file "
                "system that all machines share"
            )
        if state is None and found is not None and distributed.tell((self.folder / FILE).exists):
            # It is only ever written after a checkpoint.
            raise ValueError(f"{self.folder} has an encoder but no checkpoint to go on from; {checkpoint.ANEW}")
        return state

    def _restore(self, state: checkpoint.State) -> None:
        try:
            self.engine.restore(state)
            self.meter.restore(state["meter"])
            self.way = state["way"] if self.run.loader == "auto" else self.run.loader
            self.step = self.saved = int(state["step"])
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise ValueError(
                f"the checkpoint in {self.folder} does not fit its recipe: {reason}; {checkpoint.ANEW}"
            ) from None

    def _load(self) -> Generator[Batch, None, None]:
        """The batches of all steps that are left, from a loader that may read the whole set first."""
        run, images = self.run, self.source.train

        def seen(count: int) -> None:
            if self.interrupts.asked is not None:
                raise KeyboardInterrupt(int(self.interrupts.asked))
            if self.journal.stale():
                self.journal.line.show(f"reading images: {count:,} of {len(images):,}")

        self.loader = choose(
            images,
            self.draws,
            run.device,
            way=self.way,
            workers=run.workers,
            compile=run.compile,
            decode=run.decode,
            seen=seen,
        )
        self.commentary.resident = isinstance(self.loader, Resident)
        self.way = "resident" if self.commentary.resident else "stream"
        self.journal.say(self.loader.words)
        if run.compile:
            self.journal.say("compiling; the first step takes a minute or two")
        self.meter.start()
        return self.loader.since(self.step)

    def _log(self) -> None:
        """A line of numbers for the records, and one of words for people."""
        self._refuse_broken()
        numbers = self.meter.read(self.recipe.batch)  # before it takes time to measure health
        values = {
            **numbers,
            "train/lr": float(self.engine.optimizer.param_groups[0]["lr"]),
            **self.engine.timing(),
            **{name: value.item() for name, value in self.learner.health().items()},
        }
        self.commentary.log(self.step, values)
        self.meter.turn()

    def _due_to_judge(self) -> bool:
        """At every n-th epoch and at the end; a kill before the answer was recorded makes it due again."""
        if self.source.labelled is None or not self.run.knn_every or not self.step:
            return False
        answer = "val/linear_top1" if self.done else "val/knn_top1"
        return self._due(self.draws.per_epoch * self.run.knn_every) and not self.journal.recorded(self.step, answer)

    def _judge(self) -> None:
        """By labelled images, if that is due."""
        if not self._due_to_judge():
            return
        with self.meter.pause():
            self.journal.line.show("judging the encoder by its labelled images")
            if self.judge is None:
                self.judge = Judge(self.source, self.recipe.size(), self.run.workers)
            answer = self._ask(self.judge)
        if answer:
            self.journal.record(self.step, answer)
            tops = {name: value for name, value in answer.items() if name.endswith("top1")}
            words = "  ".join(f"{name.removeprefix('val/')} {value:.1f} %" for name, value in tops.items())
            self.journal.say(f"epoch {self.step // self.draws.per_epoch}  {words}")

    def _ask(self, judge: Judge) -> Answer:
        """At the end also of the target branch, as it may be the one to take."""
        online, momentum = self.learner.online.encoder, self.learner.momentum
        if not self.done:
            return judge.neighbours(online, self.run.device, self._confer)
        target = None if momentum is None else momentum.encoder
        return judge.all(online, target, self.run.device, self._confer)

    def _conclude(self) -> None:
        path = self.folder / FILE
        if distributed.leads() and noted(path, "step") != self.step:  # after a kill at the very end, or it was removed
            self._save_encoder()
        self.commentary.conclude(self.step, path, self.unreadable)

    def _refuse_broken(self) -> None:
        """What is not finite on one rank ends all of them."""
        self.meter.pool()
        if self.meter.broken():
            path = self.folder / "checkpoints" / "last.pt"
            kept = f"{path} (step {self.saved:,}) is the last good checkpoint"
            good = kept if self.saved > 0 else "nothing was saved"
            raise ValueError(
                f"the loss or its gradient is not finite by step {self.step:,}; {good}; "
                "begin anew with a lower --set optim.lr and --fresh"
            )
