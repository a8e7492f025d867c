class Run:
    def log(self, data, step=None, commit=None):
        self.last = data
