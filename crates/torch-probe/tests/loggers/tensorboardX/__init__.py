from tensorboardX.writer import SummaryWriter  # noqa: F401
